// Loads and reads NATS JetStream or beanstalkd for `scripts/bench --peers`.
//
//	peers nats|beanstalkd write|read TASK
//
// TASK is JSON; what it has is in the type task. Each message begins with its number and its due time (ms), 8 bytes each.
// A writer prints how long all messages took to be accepted, a reader how late they were.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

type task struct {
	Server  string  `json:"server"`
	Count   int     `json:"count"`
	Bytes   int     `json:"bytes"`
	Rate    int     `json:"rate"`   // a second; 0: as fast as they are accepted
	DueMs   int64   `json:"due_ms"` // of all messages; 0: from LowestMs to HighestMs after they are written
	Lowest  int64   `json:"lowest_ms"`
	Highest int64   `json:"highest_ms"`
	Timeout float64 `json:"timeout_s"`
}

// dueMs returns when the message with this number is due, as tests/bench/load.py does.
func (t task) dueMs(number int, nowMs int64) int64 {
	if t.DueMs > 0 {
		return t.DueMs
	}
	return nowMs + t.Lowest + int64(number)*7919%(t.Highest-t.Lowest+1)
}

func (t task) deadline() time.Time {
	return time.Now().Add(time.Duration(t.Timeout * float64(time.Second)))
}

// pace calls write with the number and the due time of each message, at the rate of the task.
func (t task) pace(write func(number int, dueMs int64)) {
	start := time.Now()
	for number := 0; number < t.Count; {
		until := t.Count
		if t.Rate > 0 {
			until = min(t.Count, int(time.Since(start).Seconds()*float64(t.Rate)))
		}
		if until <= number {
			time.Sleep(time.Millisecond)
			continue
		}
		for nowMs := time.Now().UnixMilli(); number < until; number++ {
			write(number, t.dueMs(number, nowMs))
		}
	}
}

func payload(number int, dueMs int64, size int) []byte {
	value := make([]byte, size)
	binary.BigEndian.PutUint64(value, uint64(number))
	binary.BigEndian.PutUint64(value[8:], uint64(dueMs))
	return value
}

// seen counts the messages that a reader received.
type seen struct {
	lock       sync.Mutex
	times      []uint8
	lateMs     []float64
	early      int
	duplicated int
	all        chan struct{} // closed once every message has been received
}

func newSeen(count int) *seen {
	return &seen{times: make([]uint8, count), all: make(chan struct{})}
}

// add counts a message.
func (s *seen) add(value []byte) {
	s.lock.Lock()
	defer s.lock.Unlock()
	number := binary.BigEndian.Uint64(value)
	late := float64(time.Now().UnixMicro())/1000 - float64(binary.BigEndian.Uint64(value[8:]))
	if late < 0 {
		s.early++
	}
	s.lateMs = append(s.lateMs, late)
	if s.times[number]++; s.times[number] > 1 {
		s.duplicated++
	} else if len(s.lateMs)-s.duplicated == len(s.times) {
		close(s.all)
	}
}

// result waits for all messages, or for the time to pass.
func (s *seen) result(deadline time.Time) map[string]float64 {
	select {
	case <-s.all:
	case <-time.After(time.Until(deadline)):
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	slices.Sort(s.lateMs)
	at := func(share float64) float64 {
		if len(s.lateMs) == 0 {
			return 0
		}
		return s.lateMs[min(len(s.lateMs)-1, int(share*float64(len(s.lateMs))))]
	}
	return map[string]float64{
		"p50": at(0.5), "p99": at(0.99), "max": at(1), "early": float64(s.early),
		"duplicated": float64(s.duplicated), "lost": float64(len(s.times) - (len(s.lateMs) - s.duplicated)),
	}
}

func main() {
	if len(os.Args) != 4 {
		fail(fmt.Errorf("usage: peers nats|beanstalkd write|read TASK"))
	}
	var t task
	fail(json.Unmarshal([]byte(os.Args[3]), &t))
	verbs := map[string]func(task) map[string]float64{
		"nats write": natsWrite, "nats read": natsRead,
		"beanstalkd write": beanstalkdWrite, "beanstalkd read": beanstalkdRead,
	}
	verb, ok := verbs[os.Args[1]+" "+os.Args[2]]
	if !ok {
		fail(fmt.Errorf("unknown: %s %s", os.Args[1], os.Args[2]))
	}
	fail(json.NewEncoder(os.Stdout).Encode(verb(t)))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

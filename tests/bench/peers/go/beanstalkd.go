package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	pipelined = 1_000 // puts of a connection that wait for their answer at most
	reservers = 16    // connections of the reader: each answers one job at a time
)

// beanstalkdWrite puts all messages through one connection. A delay is whole seconds, rounded up: a job is never early.
func beanstalkdWrite(t task) map[string]float64 {
	connection, err := net.Dial("tcp", t.Server)
	fail(err)
	defer connection.Close()
	room := make(chan struct{}, pipelined)
	var answered sync.WaitGroup
	answered.Add(1)
	go func() {
		defer answered.Done()
		answers := bufio.NewReader(connection)
		for range t.Count {
			line, err := answers.ReadBytes('\n')
			fail(err)
			if !bytes.HasPrefix(line, []byte("INSERTED")) {
				fail(fmt.Errorf("beanstalkd answered %s", line))
			}
			<-room
		}
	}()
	start := time.Now()
	puts := bufio.NewWriterSize(connection, 1<<16)
	t.pace(func(number int, dueMs int64) {
		delay := max(0, (dueMs-time.Now().UnixMilli()+999)/1000)
		select {
		case room <- struct{}{}:
		default:
			fail(puts.Flush())
			room <- struct{}{}
		}
		fmt.Fprintf(puts, "put 1 %d 600 %d\r\n", delay, t.Bytes)
		puts.Write(payload(number, dueMs, t.Bytes))
		puts.WriteString("\r\n")
		if t.Rate > 0 {
			fail(puts.Flush())
		}
	})
	fail(puts.Flush())
	answered.Wait()
	return map[string]float64{"accepted_s": time.Since(start).Seconds()}
}

func beanstalkdRead(t task) map[string]float64 {
	received := newSeen(t.Count)
	for range reservers {
		go reserve(t, received)
	}
	return received.result(t.deadline())
}

// reserve takes one job after the other, and deletes each together with asking for the next one.
func reserve(t task, received *seen) {
	connection, err := net.Dial("tcp", t.Server)
	fail(err)
	fail(connection.SetDeadline(t.deadline()))
	answers := bufio.NewReader(connection)
	if _, err := io.WriteString(connection, "reserve\r\n"); err != nil {
		return
	}
	value := make([]byte, t.Bytes+2)
	for {
		var id, size int
		line, err := answers.ReadString('\n')
		if err != nil {
			return // the time is over
		}
		if line == "DELETED\r\n" {
			continue
		}
		if _, err := fmt.Sscanf(line, "RESERVED %d %d", &id, &size); err != nil || size != t.Bytes {
			fail(fmt.Errorf("beanstalkd answered %s", line))
		}
		if _, err := io.ReadFull(answers, value); err != nil {
			return
		}
		received.add(value)
		if _, err := fmt.Fprintf(connection, "delete %d\r\nreserve\r\n", id); err != nil {
			return
		}
	}
}

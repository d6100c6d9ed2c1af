// Go's clients as a program: `clients NAME write|read|version ...`; tests/clients/programs.py describes the arguments.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"runtime/debug"
)

type record struct {
	Key     []byte   `json:"key"`
	Value   []byte   `json:"value"`
	Headers []header `json:"headers"`
}

type header struct {
	name  string
	value []byte
}

func (h *header) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&h.name, &h.value})
}

type client struct {
	module string
	write  func(bootstrap, topic string, records []record) error
	// read calls seen with every value until that returns false.
	read func(bootstrap, topic string, seen func(value []byte) bool) error
}

var clients = map[string]client{
	"sarama":        {"github.com/IBM/sarama", writeSarama, readSarama},
	"kafka-go":      {"github.com/segmentio/kafka-go", writeKafkaGo(nil), readKafkaGo},
	"kafka-go-hash": {"github.com/segmentio/kafka-go", writeKafkaGo(hash), readKafkaGo},
	"franz-go":      {"github.com/twmb/franz-go", writeFranz, readFranz},
}

func main() {
	log.SetFlags(0)
	arguments := os.Args
	chosen, known := clients[arguments[1]]
	if !known {
		log.Fatalf("unknown client: %s", arguments[1])
	}
	var failure error
	switch arguments[2] {
	case "write":
		records := lines()
		failure = chosen.write(arguments[3], arguments[4], records)
		if failure == nil {
			fmt.Printf("{\"written\": %d}\n", len(records))
		}
	case "read":
		output := json.NewEncoder(os.Stdout)
		end := []byte(arguments[5])
		failure = chosen.read(arguments[3], arguments[4], func(value []byte) bool {
			if err := output.Encode(map[string][]byte{"value": value}); err != nil {
				log.Fatal(err)
			}
			return !bytes.Equal(value, end)
		})
	default:
		fmt.Println(version(chosen.module))
	}
	if failure != nil {
		log.Fatal(failure)
	}
}

func lines() []record {
	var found []record
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<20)
	for input.Scan() {
		var each record
		if err := json.Unmarshal(input.Bytes(), &each); err != nil {
			log.Fatal(err)
		}
		found = append(found, each)
	}
	if err := input.Err(); err != nil {
		log.Fatal(err)
	}
	return found
}

func version(module string) string {
	if info, built := debug.ReadBuildInfo(); built {
		for _, each := range info.Deps {
			if each.Path == module {
				return each.Version
			}
		}
	}
	return "?"
}

package main

import (
	"context"
	"strings"

	"github.com/segmentio/kafka-go"
)

var hash = &kafka.Hash{}

// writeKafkaGo writes with a balancer; without one with the default of the Writer, which ignores keys.
func writeKafkaGo(balancer *kafka.Hash) func(bootstrap, topic string, records []record) error {
	return func(bootstrap, topic string, records []record) error {
		writer := &kafka.Writer{Addr: kafka.TCP(strings.Split(bootstrap, ",")...), Topic: topic, RequiredAcks: kafka.RequireAll}
		if balancer != nil {
			writer.Balancer = balancer
		}
		var messages []kafka.Message
		for _, each := range records {
			message := kafka.Message{Key: each.Key, Value: each.Value}
			for _, pair := range each.Headers {
				message.Headers = append(message.Headers, kafka.Header{Key: pair.name, Value: pair.value})
			}
			messages = append(messages, message)
		}
		if err := writer.WriteMessages(context.Background(), messages...); err != nil {
			return err
		}
		return writer.Close()
	}
}

func readKafkaGo(bootstrap, topic string, seen func([]byte) bool) error {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: strings.Split(bootstrap, ","), Topic: topic, IsolationLevel: kafka.ReadCommitted,
	})
	for {
		message, err := reader.ReadMessage(context.Background())
		if err != nil {
			return err
		}
		if !seen(message.Value) {
			return reader.Close()
		}
	}
}

package main

import (
	"strings"

	"github.com/IBM/sarama"
)

func writeSarama(bootstrap, topic string, records []record) error {
	config := sarama.NewConfig()
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	producer, err := sarama.NewSyncProducer(strings.Split(bootstrap, ","), config)
	if err != nil {
		return err
	}
	var messages []*sarama.ProducerMessage
	for _, each := range records {
		message := &sarama.ProducerMessage{Topic: topic}
		// A nil slice in a ByteEncoder would be an empty value and not a null one.
		if each.Key != nil {
			message.Key = sarama.ByteEncoder(each.Key)
		}
		if each.Value != nil {
			message.Value = sarama.ByteEncoder(each.Value)
		}
		for _, pair := range each.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(pair.name), Value: pair.value})
		}
		messages = append(messages, message)
	}
	if err := producer.SendMessages(messages); err != nil {
		return err
	}
	return producer.Close()
}

func readSarama(bootstrap, topic string, seen func([]byte) bool) error {
	config := sarama.NewConfig()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Return.Errors = true
	consumer, err := sarama.NewConsumer(strings.Split(bootstrap, ","), config)
	if err != nil {
		return err
	}
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	for {
		select {
		case message := <-partition.Messages():
			if !seen(message.Value) {
				return nil
			}
		case err := <-partition.Errors():
			return err
		}
	}
}

// Schedules, finds and cancels a message with the client that oapi-codegen makes:
//
//	main SERVER ID TOPIC
//
// Prints the result of each step on a line.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"generated/chronos"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(server, id, topic string) error {
	ctx := context.Background()
	client, err := chronos.NewClientWithResponses(server)
	if err != nil {
		return err
	}
	due := time.Now().Add(time.Hour)

	value := "from Go"
	message := chronos.Message{
		Id:        &id,
		Target:    chronos.Target{Topic: topic},
		Value:     &value,
		DeliverAt: &chronos.Time{},
	}
	if err := message.DeliverAt.FromTimeText(due.Format(time.RFC3339)); err != nil {
		return err
	}
	var body chronos.MessageOrBatch
	if err := body.FromMessage(message); err != nil {
		return err
	}
	wait := "5s"
	scheduled, err := client.ScheduleWithResponse(ctx, &chronos.ScheduleParams{Wait: &wait}, body)
	if err != nil {
		return err
	}
	if scheduled.JSON200 == nil {
		return fmt.Errorf("schedule: %s: %s", scheduled.Status(), scheduled.Body)
	}
	accepted, err := scheduled.JSON200.AsAccepted()
	if err != nil {
		return err
	}
	fmt.Println(*accepted.Result)

	found, err := client.GetWithResponse(ctx, id, nil)
	if err != nil {
		return err
	}
	if found.JSON200 == nil {
		return fmt.Errorf("get: %s: %s", found.Status(), found.Body)
	}
	fmt.Println(found.JSON200.State)

	from := due.Add(-time.Minute).Format(time.RFC3339)
	listed, err := client.ListWithResponse(ctx, &chronos.ListParams{Target: &topic, DueFrom: &from})
	if err != nil {
		return err
	}
	if listed.JSON200 == nil {
		return fmt.Errorf("list: %s: %s", listed.Status(), listed.Body)
	}
	fmt.Println(slices.ContainsFunc(listed.JSON200.Messages, func(message chronos.MessageInfo) bool {
		return message.Id == id
	}))

	cancelled, err := client.CancelWithResponse(ctx, id, nil)
	if err != nil {
		return err
	}
	if cancelled.JSON200 == nil {
		return fmt.Errorf("cancel: %s: %s", cancelled.Status(), cancelled.Body)
	}
	fmt.Println(cancelled.JSON200.Result)
	return nil
}

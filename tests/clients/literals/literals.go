// Prints how Go's package time writes times and durations: kind, milliseconds (rounded up), expression, text.
package main

import (
	"fmt"
	"time"
)

func print(kind string, nanoseconds int64, expression string, text string) {
	fmt.Printf("%s\t%d\t%s\t%s\n", kind, (nanoseconds+999_999)/1_000_000, expression, text)
}

func main() {
	for _, nanoseconds := range []int64{1796071380_000000000, 1796071385_000000000, 1796071385_500000000, 1796071380_000000001} {
		at := time.Unix(0, nanoseconds)
		for _, zone := range []*time.Location{time.UTC, time.FixedZone("CET", 3600), time.FixedZone("NST", -(3*3600 + 1800))} {
			print("time", nanoseconds/1_000_000_000*1_000_000_000, "Time.Format(RFC3339), "+zone.String(), at.Truncate(time.Second).In(zone).Format(time.RFC3339))
			print("time", nanoseconds, "Time.Format(RFC3339Nano), "+zone.String(), at.In(zone).Format(time.RFC3339Nano))
			text, _ := at.In(zone).MarshalText()
			print("time", nanoseconds, "Time.MarshalText, "+zone.String(), string(text))
		}
		print("refused", 0, "Time.String", at.UTC().String())
		print("refused", 0, "Time.Format(RFC1123Z)", at.UTC().Format(time.RFC1123Z))
	}
	for _, nanoseconds := range []int64{0, 1, 1500, 1_500_000, 1_000_000_000, 90_500_000_000, 3600_000_000_000, 93784_500_000_000, 2678400_000_000_000, 1<<63 - 1_000_000} {
		print("duration", nanoseconds, "Duration.String", time.Duration(nanoseconds).String())
	}
	print("refused", 0, "Duration.String, negative", time.Duration(-90_000_000_000).String())
}

package apitest

import "time"

// AdvanceClock moves the clock of a synctest bubble. Whoever waits in the bubble for less goes on first.
func AdvanceClock(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // no real time passes in a bubble
}

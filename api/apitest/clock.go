package apitest

import "time"

// AdvanceClock moves the clock of a synctest bubble. Goroutines with earlier timers run first. Outside a
// bubble it would be a real sleep.
func AdvanceClock(d time.Duration) {
	<-time.After(d)
}

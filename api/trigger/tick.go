package trigger

import "time"

var processStart = time.Now()

// UntilTick returns the shortest delay of at least least that ends at a multiple of period since this
// process began. What waits for ticks is done together: to wake an idle process for a heartbeat
// costs more CPU than the heartbeat.
func UntilTick(least, period time.Duration) time.Duration {
	end := time.Since(processStart) + least
	return least + (period-end%period)%period
}

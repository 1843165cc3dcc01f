// Package numbers formats numbers for people: the command line and the dashboard show the same, which the
// corpus of its test keeps so. Data has numbers as they are.
package numbers

import (
	"fmt"
	"strconv"
)

// Format returns a whole number with its thousands apart, as in 1,000.
func Format(n int64) string {
	text := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for at := len(text) - 3; at > first; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// Sprintf is fmt.Sprintf, with whole numbers as by Format where %d or %v has them.
func Sprintf(format string, args ...any) string {
	if false {
		_ = fmt.Sprintf(format, args...) // by which vet checks the callers
	}
	shown := make([]any, len(args))
	for i, arg := range args {
		switch n := arg.(type) {
		case int:
			shown[i] = number(n)
		case int32:
			shown[i] = number(n)
		case int64:
			shown[i] = number(n)
		default:
			shown[i] = arg
		}
	}
	return fmt.Sprintf(format, shown...)
}

type number int64

// Format formats it where no width or other base is asked for.
func (n number) Format(state fmt.State, verb rune) {
	if layout := fmt.FormatString(state, verb); layout != "%d" && layout != "%v" {
		fmt.Fprintf(state, layout, int64(n))
		return
	}
	fmt.Fprint(state, Format(int64(n)))
}

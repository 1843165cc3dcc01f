package readapi

import (
	"strconv"
	"strings"
)

// AcceptsGzip reports whether a request's Accept-Encoding allows gzip: by name, or by * where it is
// not named.
func AcceptsGzip(header string) bool {
	others := false
	for part := range strings.SplitSeq(header, ",") {
		name, parameters, _ := strings.Cut(part, ";")
		quality, found := strings.CutPrefix(strings.TrimSpace(parameters), "q=")
		q, err := strconv.ParseFloat(quality, 64)
		accepted := !found || err == nil && q > 0
		switch name = strings.TrimSpace(name); {
		case strings.EqualFold(name, "gzip"):
			return accepted
		case name == "*":
			others = accepted
		}
	}
	return others
}

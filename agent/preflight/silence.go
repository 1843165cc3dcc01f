package preflight

import "time"

const (
	// silenceDuration is how long the images of a namespace do not ask a server again
	// that did not answer one of them.
	silenceDuration = 30 * time.Second
	// maxSilentServers bounds the memory of them.
	maxSilentServers = 1024
)

// server is what did not answer, as seen from a namespace: a path that hangs does not
// take the preflight of the same server from the images of others.
type server struct {
	namespace, scheme, host string
}

// silentServers remembers the servers that did not answer, until when.
type silentServers map[server]time.Time

func (s silentServers) contains(k server, now time.Time) bool { return now.Before(s[k]) }

// record remembers a server. Where there are too many, it drops those that are over, and
// else the one that is over first.
func (s silentServers) record(k server, now time.Time) {
	if _, known := s[k]; !known && len(s) >= maxSilentServers {
		var first server
		for other, until := range s {
			if !now.Before(until) {
				delete(s, other)
			} else if s[first].IsZero() || until.Before(s[first]) {
				first = other
			}
		}
		if len(s) >= maxSilentServers {
			delete(s, first)
		}
	}
	s[k] = now.Add(silenceDuration)
}

func (s silentServers) forget(k server) { delete(s, k) }

package install

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"github.com/pelotech/ot-fleet/api/storedtime"
)

const (
	// MaxAttempts bounds the attempts at one target. After that a person has to change
	// something.
	MaxAttempts = 6
	// MaxBackoff is the longest wait between two attempts.
	MaxBackoff = 30 * time.Minute
)

// Attempts at one target in a member. They are stored before each attempt, so that a hub
// that crashes in every attempt is bounded too.
type Attempts struct {
	// Target of the attempts, see Snapshot.AttemptTarget.
	Target string    `json:"of"`
	Count  int       `json:"count"`
	LastAt time.Time `json:"last"`
	// Error of the last attempt; empty if it did not finish.
	Error string `json:"error,omitempty"`
}

// ParseAttempts reads the annotation. An unreadable one counts as no attempts: removing
// the annotation resets the count.
func ParseAttempts(text string) (a Attempts) {
	if json.Unmarshal([]byte(text), &a) != nil || a.Count < 0 {
		return Attempts{}
	}
	return a
}

// String returns the annotation.
func (a Attempts) String() string {
	text, err := json.Marshal(a)
	if err != nil {
		return "" // strings, a number and a time always encode
	}
	return string(text)
}

// NextAttempt returns the attempts after one more, made now.
func (s Snapshot) NextAttempt() Attempts {
	return Attempts{Target: s.AttemptTarget(), Count: s.currentAttempts().Count + 1, LastAt: storedtime.Truncate(s.Now).Time}
}

// AttemptTarget identifies what is attempted: the desired release and what annotations
// permit. The count restarts when it changes.
func (s Snapshot) AttemptTarget() string {
	sum := sha256.New()
	for _, part := range []string{s.Desired.Revision, s.Desired.Version, strconv.FormatBool(s.Adopt), s.Downgrade} {
		sum.Write([]byte(strconv.Quote(part)))
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// currentAttempts returns the attempts at the current target.
func (s Snapshot) currentAttempts() Attempts {
	if s.Attempts.Target != s.AttemptTarget() {
		return Attempts{}
	}
	return s.Attempts
}

// nextAttemptWait returns how long to wait for the next attempt. A hub's clock that was ahead
// delays none: MaxAttempts bounds them anyway.
func (s Snapshot) nextAttemptWait() time.Duration {
	attempts := s.currentAttempts()
	if attempts.Count == 0 {
		return 0
	}
	wait := s.Backoff
	for range attempts.Count - 1 {
		wait = min(2*wait, MaxBackoff)
	}
	return storedtime.Remaining(s.Now, attempts.LastAt, wait)
}

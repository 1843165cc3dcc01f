package install

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"
)

const (
	// MaxAttempts are made at one thing. Then a person has to change something.
	MaxAttempts = 6
	// maxBackoff is the longest wait between two of them.
	maxBackoff = 30 * time.Minute
)

// Attempts at installing one thing in a member. They are stored before each is made: a
// hub that dies of every one of them is bounded too.
type Attempts struct {
	// Target is what they were at, see Seen.Attempt.
	Target string    `json:"of"`
	Count  int       `json:"count"`
	LastAt time.Time `json:"last"`
	// Error of the last one; empty where it did not come to an end.
	Error string `json:"error,omitempty"`
}

// ParseAttempts reads the annotation that they are stored in. What cannot be read counts
// as none: a person may remove the annotation to have it tried anew.
func ParseAttempts(text string) (a Attempts) {
	if json.Unmarshal([]byte(text), &a) != nil || a.Count < 0 {
		return Attempts{}
	}
	return a
}

// String is the annotation.
func (a Attempts) String() string {
	text, err := json.Marshal(a)
	if err != nil {
		return "" // strings, a number and a time always encode
	}
	return string(text)
}

// NextAttempt are the attempts with one more, made now.
func (s Snapshot) NextAttempt() Attempts {
	return Attempts{Target: s.AttemptTarget(), Count: s.currentAttempts().Count + 1, LastAt: s.Now.UTC().Truncate(time.Second)}
}

// AttemptTarget names what is attempted: the desired release, and what a person has allowed.
// When it changes, the count begins anew.
func (s Snapshot) AttemptTarget() string {
	sum := sha256.New()
	for _, part := range []string{s.Desired.Revision, s.Desired.Version, strconv.FormatBool(s.Adopt), s.Downgrade} {
		sum.Write([]byte(strconv.Quote(part)))
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// currentAttempts that count for what is desired now.
func (s Snapshot) currentAttempts() Attempts {
	if s.Attempts.Target != s.AttemptTarget() {
		return Attempts{}
	}
	return s.Attempts
}

// nextAttemptAt is when the next attempt may be made.
func (s Snapshot) nextAttemptAt() time.Time {
	made := s.currentAttempts()
	if made.Count == 0 {
		return s.Now
	}
	wait := s.Backoff
	for range made.Count - 1 {
		wait = min(2*wait, maxBackoff)
	}
	return made.LastAt.Add(wait)
}

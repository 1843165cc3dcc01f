package install

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"
)

const (
	// MostAttempts are made at one thing. Then a person has to change something.
	MostAttempts = 6
	// mostBackoff is the longest wait between two of them.
	mostBackoff = 30 * time.Minute
)

// Attempts at installing one thing in a member. They are stored before each is made: a
// hub that dies of every one of them is bounded too.
type Attempts struct {
	// Of is what they were at, see Seen.Attempt.
	Of    string    `json:"of"`
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
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

// Next are the attempts with one more, made now.
func (s Seen) Next() Attempts {
	return Attempts{Of: s.Attempt(), Count: s.attempts().Count + 1, Last: s.Now.UTC().Truncate(time.Second)}
}

// Attempt names what is attempted: the desired release, and what a person has allowed.
// When it changes, the count begins anew.
func (s Seen) Attempt() string {
	sum := sha256.New()
	for _, part := range []string{s.Desired.Revision, s.Desired.Version, strconv.FormatBool(s.Adopt), s.Downgrade} {
		sum.Write([]byte(strconv.Quote(part)))
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// attempts that count for what is desired now.
func (s Seen) attempts() Attempts {
	if s.Attempts.Of != s.Attempt() {
		return Attempts{}
	}
	return s.Attempts
}

// due is when the next attempt may be made.
func (s Seen) due() time.Time {
	made := s.attempts()
	if made.Count == 0 {
		return s.Now
	}
	wait := s.Backoff
	for range made.Count - 1 {
		wait = min(2*wait, mostBackoff)
	}
	return made.Last.Add(wait)
}

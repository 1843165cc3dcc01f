package v1alpha1

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// unknownColumn stands for a value that is not known.
	unknownColumn = "-"
	// atMostPrefix marks a size that is an upper bound.
	atMostPrefix = "max"
)

// MarshalJSON implements json.Marshaler.
func (i ActiveImport) MarshalJSON() ([]byte, error) {
	return json.Marshal(strings.Join([]string{
		i.Namespace + "/" + i.Name, formatColumn(i.Source), strconv.Itoa(int(i.Attempt)) + "/" + strconv.Itoa(int(i.MaxAttempts)), formatUnix(i.StartedAt),
		strconv.FormatInt(i.BytesDone, 10) + "/" + formatSize(i.BytesTotal, i.AtMostBytes), formatNumber(i.BytesPerSecond),
	}, " "))
}

// UnmarshalJSON implements json.Unmarshaler. What it cannot read is unknown: one bad line must
// not make a whole report unreadable. Columns that a later version adds are ignored.
func (i *ActiveImport) UnmarshalJSON(text []byte) error {
	columns := splitLine(text)
	*i = ActiveImport{Source: columns.text(1), StartedAt: columns.time(3), BytesPerSecond: parseNumber(columns.text(5))}
	i.Namespace, i.Name, _ = strings.Cut(columns.text(0), "/")
	attempt, maxAttempts, _ := strings.Cut(columns.text(2), "/")
	i.Attempt, i.MaxAttempts = parseCount(attempt), parseCount(maxAttempts)
	done, total, _ := strings.Cut(columns.text(4), "/")
	i.BytesDone = parseNumber(done)
	i.BytesTotal, i.AtMostBytes = parseSize(total)
	return nil
}

// Keys of the optional values of a QueuedImport.
const (
	linePriority  = "priority"
	lineAttempts  = "attempts"
	lineNotBefore = "notBefore"
	lineOpensAt   = "opensAt"
)

// MarshalJSON implements json.Marshaler.
func (i QueuedImport) MarshalJSON() ([]byte, error) {
	columns := []string{i.Namespace + "/" + i.Name, formatColumn(i.Source), formatUnix(i.QueuedAt), formatSize(i.Bytes, i.AtMostBytes), formatColumn(string(i.Reason))}
	if i.Priority != 0 {
		columns = append(columns, linePriority+"="+strconv.Itoa(int(i.Priority)))
	}
	if i.Attempts != 0 {
		columns = append(columns, lineAttempts+"="+strconv.Itoa(int(i.Attempts)))
	}
	if i.NotBefore != nil {
		columns = append(columns, lineNotBefore+"="+formatUnix(*i.NotBefore))
	}
	if i.OpensAt != nil {
		columns = append(columns, lineOpensAt+"="+formatUnix(*i.OpensAt))
	}
	return json.Marshal(strings.Join(columns, " "))
}

// UnmarshalJSON implements json.Unmarshaler, as for an ActiveImport.
func (i *QueuedImport) UnmarshalJSON(text []byte) error {
	columns := splitLine(text)
	*i = QueuedImport{Source: columns.text(1), QueuedAt: columns.time(2), Reason: Reason(columns.text(4))}
	i.Namespace, i.Name, _ = strings.Cut(columns.text(0), "/")
	i.Bytes, i.AtMostBytes = parseSize(columns.text(3))
	for _, column := range columns[min(len(columns), 5):] {
		switch key, value, _ := strings.Cut(column, "="); key {
		case linePriority:
			priority, _ := strconv.ParseInt(value, 10, 32)
			i.Priority = int32(priority)
		case lineAttempts:
			i.Attempts = parseCount(value)
		case lineNotBefore:
			if at := parseUnix(value); !at.IsZero() {
				i.NotBefore = &at
			}
		case lineOpensAt:
			if at := parseUnix(value); !at.IsZero() {
				i.OpensAt = &at
			}
		}
	}
	return nil
}

// lineColumns are the columns of one line.
type lineColumns []string

// splitLine returns the columns of a line; none if it is no string.
func splitLine(text []byte) lineColumns {
	var line string
	if json.Unmarshal(text, &line) != nil {
		return nil
	}
	return strings.Fields(line)
}

// text returns a column; empty if it is unknown.
func (c lineColumns) text(n int) string {
	if n >= len(c) || c[n] == unknownColumn {
		return ""
	}
	return c[n]
}

func (c lineColumns) time(n int) metav1.Time { return parseUnix(c.text(n)) }

// formatColumn returns a text as one column.
func formatColumn(text string) string {
	if text == "" {
		return unknownColumn
	}
	return strings.Join(strings.Fields(text), "_")
}

func formatNumber(n int64) string {
	if n == 0 {
		return unknownColumn
	}
	return strconv.FormatInt(n, 10)
}

func formatSize(bytes, atMost int64) string {
	if bytes == 0 && atMost != 0 {
		return atMostPrefix + strconv.FormatInt(atMost, 10)
	}
	return formatNumber(bytes)
}

func formatUnix(t metav1.Time) string {
	if t.IsZero() {
		return unknownColumn
	}
	return strconv.FormatInt(t.Unix(), 10)
}

// parseNumber returns a number that is not negative; 0 for anything else.
func parseNumber(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return max(0, n)
}

func parseCount(text string) int32 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0
	}
	return max(0, int32(n))
}

func parseSize(text string) (bytes, atMost int64) {
	if bound, isBound := strings.CutPrefix(text, atMostPrefix); isBound {
		return 0, parseNumber(bound)
	}
	return parseNumber(text), 0
}

// maxUnixSeconds is the last second of the year 9999, which RFC 3339 can say.
const maxUnixSeconds = 253402300799

func parseUnix(text string) metav1.Time {
	seconds := parseNumber(text)
	if seconds == 0 || seconds > maxUnixSeconds {
		return metav1.Time{}
	}
	return metav1.NewTime(time.Unix(seconds, 0).UTC())
}

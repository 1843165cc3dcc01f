package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/api/yamlalias"
)

// KeyWindows lists the times at which other numbers apply.
const KeyWindows = "windows"

// Bounds of KeyWindows.
const (
	MaxWindows        = 32
	MinWindowDuration = 5 * time.Minute
	MaxWindowDuration = 7 * 24 * time.Hour
	// MaxFleetConcurrency bounds fleetConcurrency.
	MaxFleetConcurrency = 100_000

	maxCronLength     = 128
	maxDurationLength = 64
	maxTimeZoneLength = 64
)

// Window is a time that recurs, and the numbers that apply while it is open.
type Window struct {
	// Cron is when the window opens, by the clock of TimeZone.
	Cron string
	// Duration is how long it stays open, in elapsed time.
	Duration time.Duration
	// TimeZone is an IANA name; empty for UTC.
	TimeZone string
	// Concurrency while the window is open; nil leaves it to other windows and the plain key.
	Concurrency *int32
	// FleetConcurrency is the same of the hub's key.
	FleetConcurrency *int32
}

// Windows of a policy. Of several that are open, the last one wins, key by key.
type Windows []Window

// windowFields are the fields of a window. Their order is that of messages.
var windowFields = []string{"cron", "duration", "timeZone", "concurrency", fieldFleetConcurrency}

const fieldFleetConcurrency = "fleetConcurrency"

var timeZonePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`)

// ParseWindows parses the value of KeyWindows, a YAML list. Errors that concern one window
// begin with its index, as in [0].cron, so that the key comes right before it.
func ParseWindows(text string) (Windows, error) {
	if len(text) > maxValueBytes {
		return nil, fmt.Errorf("it has %d bytes: the maximum is %d", len(text), maxValueBytes)
	}
	if HasSeveralDocuments(text) {
		return nil, errors.New("it is more than one YAML document, of which only the first would count: make it one list")
	}
	if err := yamlalias.Check([]byte(text)); err != nil {
		return nil, err
	}
	document, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, fmt.Errorf(`it is not a YAML list of windows: put each cron in quotes, as in cron: "0 22 * * *" (%s)`, v1alpha1.SanitizeText(err.Error(), 120))
	}
	var entries []map[string]any
	if err := json.Unmarshal(document, &entries); err != nil {
		return nil, errors.New(`it is not a list of windows, as in - {cron: "0 22 * * *", duration: 8h, timeZone: Europe/Berlin, concurrency: 4}`)
	}
	if len(entries) > MaxWindows {
		return nil, fmt.Errorf("there are %d windows: the maximum is %d", len(entries), MaxWindows)
	}
	var windows Windows
	for i, entry := range entries {
		window, err := parseWindow(entry)
		if err != nil {
			return nil, fmt.Errorf("[%d]%w", i, err)
		}
		windows = append(windows, window)
	}
	return windows, nil
}

// parseWindow returns errors that begin with the name of a field, as in .cron.
func parseWindow(entry map[string]any) (w Window, err error) {
	for field := range entry {
		if !slices.Contains(windowFields, field) {
			return w, fmt.Errorf(": %q is not a field of a window: these are %s", v1alpha1.SanitizeText(field, maxQuotedEntryLength), strings.Join(windowFields, ", "))
		}
	}
	if w.Cron, err = textField(entry, "cron", maxCronLength); err != nil {
		return w, err
	}
	if _, err = ParseCron(w.Cron, "timeZone"); err != nil {
		return w, fmt.Errorf(".cron: %w", err)
	}
	duration, err := textField(entry, "duration", maxDurationLength)
	if err != nil {
		return w, err
	}
	if w.Duration, err = parseDuration(duration, MinWindowDuration, MaxWindowDuration); err != nil {
		return w, fmt.Errorf(".duration: %w", err)
	}
	if w.TimeZone, err = textField(entry, "timeZone", maxTimeZoneLength); err != nil {
		return w, err
	}
	if _, err = LoadZone(w.TimeZone); err != nil {
		return w, fmt.Errorf(".timeZone: %w", err)
	}
	if w.Concurrency, err = numberField(entry, KeyConcurrency, v1alpha1.MaxSlots); err != nil {
		return w, err
	}
	if w.FleetConcurrency, err = numberField(entry, fieldFleetConcurrency, MaxFleetConcurrency); err != nil {
		return w, err
	}
	if w.Concurrency == nil && w.FleetConcurrency == nil {
		return w, errors.New(".concurrency: it is missing: say how many imports may run while the window is open")
	}
	return w, nil
}

// textField returns a text of a window; empty where it is not set.
func textField(entry map[string]any, field string, maxLength int) (string, error) {
	value, set := entry[field]
	if !set || value == nil {
		return "", nil
	}
	text, isText := value.(string)
	switch {
	case !isText:
		return "", fmt.Errorf(".%s: it is no text: put it in quotes", field)
	case len(text) > maxLength:
		return "", fmt.Errorf(".%s: it has %d characters: the maximum is %d", field, len(text), maxLength)
	}
	return strings.TrimSpace(text), nil
}

// numberField returns a number of a window; nil where it is not set.
func numberField(entry map[string]any, field string, maximum int32) (*int32, error) {
	value, set := entry[field]
	if !set || value == nil {
		return nil, nil
	}
	text := fmt.Sprint(value)
	if number, isNumber := value.(float64); isNumber {
		text = strconv.FormatFloat(number, 'f', -1, 64)
	}
	number, err := parseInt32(v1alpha1.SanitizeText(text, maxQuotedEntryLength), maximum)
	if err != nil {
		return nil, fmt.Errorf(".%s: %w", field, err)
	}
	return &number, nil
}

// Equal reports whether two lists are the same.
func (w Windows) Equal(o Windows) bool { return w.marshal() == o.marshal() }

// ForMembers returns what members may be told: the windows that set concurrency, without
// fleetConcurrency, which only the hub judges.
func (w Windows) ForMembers() Windows {
	var kept Windows
	for _, window := range w {
		if window.Concurrency != nil {
			window.FleetConcurrency = nil
			kept = append(kept, window)
		}
	}
	return kept
}

// marshal returns the value of KeyWindows; empty for no windows.
func (w Windows) marshal() string {
	if len(w) == 0 {
		return ""
	}
	type entry struct {
		Cron             string `json:"cron"`
		Duration         string `json:"duration"`
		TimeZone         string `json:"timeZone,omitempty"`
		Concurrency      *int32 `json:"concurrency,omitempty"`
		FleetConcurrency *int32 `json:"fleetConcurrency,omitempty"`
	}
	entries := make([]entry, len(w))
	for i, window := range w {
		entries[i] = entry{window.Cron, window.Duration.String(), window.TimeZone, window.Concurrency, window.FleetConcurrency}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return string(text)
}

// String returns the value of KeyWindows.
func (w Windows) String() string { return w.marshal() }

// unmarshal parses the windows of a plan.
func (w *Windows) unmarshal(text string) error {
	windows, err := ParseWindows(text)
	if err != nil {
		return err
	}
	for i, window := range windows {
		if window.FleetConcurrency != nil {
			return fmt.Errorf("[%d].%s: only the hub's own policy can set it: remove it here", i, fieldFleetConcurrency)
		}
	}
	*w = windows
	return nil
}

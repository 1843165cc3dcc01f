// Package policy parses the policy ConfigMap sync-operator-policy. It is pure: text in,
// a Policy or the errors of each key out.
package policy

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Default location of a cluster's policy ConfigMap.
const (
	DefaultNamespace = "sync-operator"
	DefaultName      = "sync-operator-policy"
)

// Policy is how a cluster syncs images.
type Policy struct {
	// Concurrency is how many imports may run at a time, from 0 to v1alpha1.MaxSlots.
	Concurrency int32
	// ConcurrencyUnset: the cluster's own ConfigMap does not set concurrency. Its default
	// applies without a hub, and limits no plan of one.
	ConcurrencyUnset bool
	// RetryLimit is how often a failed import is retried: at most RetryLimit+1 attempts
	// are made.
	RetryLimit int32
	// RetryBackoff is the delay before the first retry. It doubles with each retry, up
	// to MaxRetryBackoff, and is jittered by up to a fifth.
	RetryBackoff    time.Duration
	MaxRetryBackoff time.Duration
	// AttemptTimeout ends an attempt even if it makes progress, and a wait for a
	// VolumeSnapshot that is taken.
	AttemptTimeout time.Duration
	// StallTimeout ends an attempt whose progress stands still for this long, or a wait
	// for a VolumeSnapshot to be taken. Importers whose progress is not measured run on.
	StallTimeout time.Duration
	// MaxPriority caps spec.priority of images.
	MaxPriority int32
	// ResyncLimit is how often in 24 hours the lost storage of one image is synced
	// again.
	ResyncLimit int32
	// Preflight requests an HTTP source before an image gets a slot.
	Preflight bool
	// PreflightAllow are the internal sources that are requested as well.
	PreflightAllow PreflightAllow

	// NamespaceShare is how many slots the images of one namespace get while images of
	// other namespaces wait; 0 for no limit.
	NamespaceShare int32
	// AllowedNamespaces are those in which a hub's plan may create and change images.
	// Only the cluster's own ConfigMap can set it.
	AllowedNamespaces Namespaces

	// Windows are the times at which another Concurrency applies; see At.
	Windows Windows

	// UsesGrants: imports beyond SafeConcurrency, and all imports from Sources, need a
	// grant of the fleet-wide budget. SafeConcurrency and Sources are ignored without
	// it. Only a hub's plan can set it; see ParseConfigMap.
	UsesGrants      bool
	SafeConcurrency int32
	Sources         Sources
}

// Default is the policy of an empty ConfigMap.
func Default() Policy {
	return Policy{
		Concurrency:     3,
		RetryLimit:      3,
		RetryBackoff:    time.Minute,
		MaxRetryBackoff: time.Hour,
		AttemptTimeout:  6 * time.Hour,
		StallTimeout:    15 * time.Minute,
		MaxPriority:     0,
		ResyncLimit:     3,
		Preflight:       true,
	}
}

// KeyError is an error in one key of the ConfigMap.
type KeyError struct {
	Key     string
	Message string
}

var entryPattern = regexp.MustCompile(`^\[[0-9]+\][.:]`)

// Error names the key, and the entry of a list where the message begins with its index, as in
// [0].cron.
func (e KeyError) Error() string {
	if entryPattern.MatchString(e.Message) {
		return e.Key + e.Message
	}
	return e.Key + ": " + e.Message
}

// keyCodec parses and formats one key of the ConfigMap.
type keyCodec struct {
	parse  func(*Policy, string) error
	format func(Policy) string
}

// Bounds of the keys.
const (
	MaxRetries  = 100
	MaxPriority = 1000
	MaxDuration = 30 * 24 * time.Hour
)

const (
	// maxValueBytes bounds the value of a key. A report can hold no longer one.
	maxValueBytes = 16384
	// maxErrorBytes bounds the message of an error, which may quote the value.
	maxErrorBytes = 512
)

const (
	// KeyConcurrency is how many imports may run at a time.
	KeyConcurrency = "concurrency"
	// KeyAttemptTimeout is how long an attempt may run.
	KeyAttemptTimeout = "attemptTimeout"
	// KeyStallTimeout is how long an attempt may stand still.
	KeyStallTimeout = "stallTimeout"
	// KeyNamespaceShare limits the slots of one namespace.
	KeyNamespaceShare = "namespaceShare"
)

// memberKeys can be set by a cluster's ConfigMap, and by a hub's plan.
var memberKeys = map[string]keyCodec{
	KeyConcurrency:         int32Codec(func(p *Policy) *int32 { return &p.Concurrency }, v1alpha1.MaxSlots),
	"retryLimit":           int32Codec(func(p *Policy) *int32 { return &p.RetryLimit }, MaxRetries),
	"retryBackoffDuration": durationCodec(func(p *Policy) *time.Duration { return &p.RetryBackoff }, 0),
	"maxRetryBackoff":      durationCodec(func(p *Policy) *time.Duration { return &p.MaxRetryBackoff }, 0),
	KeyAttemptTimeout:      durationCodec(func(p *Policy) *time.Duration { return &p.AttemptTimeout }, time.Second),
	KeyStallTimeout:        durationCodec(func(p *Policy) *time.Duration { return &p.StallTimeout }, time.Second),
	"maxPriority":          int32Codec(func(p *Policy) *int32 { return &p.MaxPriority }, MaxPriority),
	"resyncLimit":          int32Codec(func(p *Policy) *int32 { return &p.ResyncLimit }, MaxRetries),
	KeyNamespaceShare:      int32Codec(func(p *Policy) *int32 { return &p.NamespaceShare }, v1alpha1.MaxSlots),
	"preflight": {
		parse: func(p *Policy, s string) error {
			v, err := strconv.ParseBool(s)
			if err != nil {
				return fmt.Errorf("%q is neither true nor false", s)
			}
			p.Preflight = v
			return nil
		},
		format: func(p Policy) string { return strconv.FormatBool(p.Preflight) },
	},
	KeyPreflightAllow: {
		parse: func(p *Policy, s string) (err error) {
			p.PreflightAllow, err = parsePreflightAllow(s)
			return err
		},
		format: func(p Policy) string { return p.PreflightAllow.String() },
	},
	KeyWindows: {
		parse:  func(p *Policy, s string) error { return p.Windows.unmarshal(s) },
		format: func(p Policy) string { return p.Windows.String() },
	},
}

// hubKeys can be set only in a hub's plan.
var hubKeys = map[string]keyCodec{
	KeySafeConcurrency: int32Codec(func(p *Policy) *int32 { return &p.SafeConcurrency }, v1alpha1.MaxSlots),
	KeyFleetSources:    {parse: func(p *Policy, s string) error { return p.Sources.unmarshal(s) }, format: func(p Policy) string { return p.Sources.marshal() }},
}

// ownKeys can be set only by a cluster's own ConfigMap.
var ownKeys = map[string]keyCodec{
	KeyAllowedNamespaces: {parse: func(p *Policy, s string) error { return p.AllowedNamespaces.unmarshal(s) }, format: func(p Policy) string { return p.AllowedNamespaces.marshal() }},
}

// IsOwnKey reports whether only a cluster's own ConfigMap can set a key. The ConfigMap of
// the hub's own cluster may have it too.
func IsOwnKey(key string) bool { return ownKeys[key].parse != nil }

// ConfigMapKeys returns the keys that a cluster's policy ConfigMap may have, sorted.
func ConfigMapKeys() []string {
	keys := make([]string, 0, len(memberKeys))
	for k := range memberKeys {
		keys = append(keys, k)
	}
	for k := range ownKeys {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// PlanKeys returns the keys that a hub's plan may have, sorted.
func PlanKeys() []string {
	keys := append(slices.Collect(maps.Keys(memberKeys)), slices.Collect(maps.Keys(hubKeys))...)
	slices.Sort(keys)
	return keys
}

// ParseConfigMap parses the data of a cluster's policy ConfigMap. Keys that only a hub
// may set are returned as unknown: a cluster without a hub has no grants.
func ParseConfigMap(data map[string]string) (p Policy, unknown []string, errs []KeyError) {
	own := make(map[string]string, len(data))
	var ignored []string
	for key, text := range data {
		if _, hubs := hubKeys[key]; hubs {
			ignored = append(ignored, key)
			continue
		}
		own[key] = text
	}
	// The hub's own cluster has one ConfigMap for both.
	if windows, err := ParseWindows(own[KeyWindows]); err == nil {
		for i, window := range windows {
			if window.FleetConcurrency != nil {
				ignored = append(ignored, fmt.Sprintf("%s[%d].%s", KeyWindows, i, fieldFleetConcurrency))
			}
		}
		own[KeyWindows] = windows.ForMembers().String()
	}
	p, unknown, errs = parse(own, memberKeys, ownKeys)
	if _, set := own[KeyConcurrency]; !set && len(errs) == 0 {
		p.ConcurrencyUnset = true
	}
	unknown = append(unknown, ignored...)
	sort.Strings(unknown)
	return p, unknown, errs
}

// BinaryErrors returns an error for each key of a ConfigMap's binaryData, sorted. kubectl and kustomize
// put a file there that is not UTF-8, as PowerShell writes it: without an error its key would have its
// default, and a budget would be gone.
func BinaryErrors(binaryData map[string][]byte) (errs []KeyError) {
	for _, key := range slices.Sorted(maps.Keys(binaryData)) {
		errs = append(errs, KeyError{key, "its text is in binaryData, since it is not UTF-8: write it as UTF-8, in data"})
	}
	return errs
}

// Parse parses the policy of a plan or a stored one. A missing key has its default. If
// any key is invalid, errs lists them all and p is not to be used: a partly applied
// policy is nobody's intention. Unknown keys are returned and are no error: they may be
// for the hub or for a newer agent. Both lists are sorted by key.
func Parse(data map[string]string) (p Policy, unknown []string, errs []KeyError) {
	return parse(data, memberKeys, hubKeys)
}

func parse(data map[string]string, keys ...map[string]keyCodec) (p Policy, unknown []string, errs []KeyError) {
	p = Default()
	for key, text := range data {
		var f keyCodec
		for _, some := range keys {
			if codec, known := some[key]; known {
				f = codec
			}
		}
		if f.parse == nil {
			unknown = append(unknown, key)
			continue
		}
		if len(text) > maxValueBytes {
			errs = append(errs, KeyError{key, fmt.Sprintf("it has %d bytes: the maximum is %d", len(text), maxValueBytes)})
			continue
		}
		if err := f.parse(&p, strings.TrimSpace(text)); err != nil {
			errs = append(errs, KeyError{key, v1alpha1.Truncate(err.Error(), maxErrorBytes)})
		}
	}
	backoffRefused := slices.ContainsFunc(errs, func(e KeyError) bool { return e.Key == "maxRetryBackoff" || e.Key == "retryBackoffDuration" })
	if !backoffRefused && p.MaxRetryBackoff < p.RetryBackoff {
		if _, set := data["maxRetryBackoff"]; set {
			errs = append(errs, KeyError{"maxRetryBackoff", fmt.Sprintf("%s is less than retryBackoffDuration, %s", p.MaxRetryBackoff, p.RetryBackoff)})
		} else {
			p.MaxRetryBackoff = p.RetryBackoff
		}
	}
	if _, p.UsesGrants = data[KeySafeConcurrency]; !p.UsesGrants {
		p.Sources = nil
	}
	sort.Strings(unknown)
	sort.Slice(errs, func(i, j int) bool { return errs[i].Key < errs[j].Key })
	if len(errs) > 0 {
		return Policy{}, unknown, errs
	}
	return p, unknown, nil
}

// ToData returns every key of a policy, so that Parse(p.ToData()) equals p apart from
// AllowedNamespaces and ConcurrencyUnset. The hub's keys are included only if UsesGrants is set, and
// preflightAllow, namespaceShare, windows and allowedNamespaces only if they say anything: an older
// agent reports keys that it does not know.
func (p Policy) ToData() map[string]string {
	data := make(map[string]string, len(memberKeys)+len(hubKeys))
	for key, f := range memberKeys {
		data[key] = f.format(p)
	}
	if len(p.PreflightAllow) == 0 {
		delete(data, KeyPreflightAllow)
	}
	if p.NamespaceShare == 0 {
		delete(data, KeyNamespaceShare)
	}
	if len(p.Windows) == 0 {
		delete(data, KeyWindows)
	}
	if len(p.AllowedNamespaces) > 0 {
		data[KeyAllowedNamespaces] = ownKeys[KeyAllowedNamespaces].format(p)
	}
	if p.UsesGrants {
		data[KeySafeConcurrency] = hubKeys[KeySafeConcurrency].format(p)
		if len(p.Sources) > 0 {
			data[KeyFleetSources] = hubKeys[KeyFleetSources].format(p)
		}
	}
	return data
}

// Equal reports whether two policies are the same.
func (p Policy) Equal(o Policy) bool {
	same := p.Sources.Equal(o.Sources)
	p.Sources, o.Sources = nil, nil
	return same && reflect.DeepEqual(p, o)
}

func int32Codec(fieldOf func(*Policy) *int32, maximum int32) keyCodec {
	return keyCodec{
		parse: func(p *Policy, s string) (err error) {
			*fieldOf(p), err = parseInt32(s, maximum)
			return err
		},
		format: func(p Policy) string { return strconv.Itoa(int(*fieldOf(&p))) },
	}
}

func parseInt32(s string, maximum int32) (int32, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a whole number from 0 to %d", s, maximum)
	case v < 0:
		return 0, fmt.Errorf("%d is too small: the minimum is 0", v)
	case v > int64(maximum):
		return 0, fmt.Errorf("%d is too large: the maximum is %d", v, maximum)
	}
	return int32(v), nil
}

func durationCodec(fieldOf func(*Policy) *time.Duration, minimum time.Duration) keyCodec {
	return keyCodec{
		parse: func(p *Policy, s string) (err error) {
			*fieldOf(p), err = parseDuration(s, minimum, MaxDuration)
			return err
		},
		format: func(p Policy) string { return fieldOf(&p).String() },
	}
}

func parseDuration(s string, minimum, maximum time.Duration) (time.Duration, error) {
	v, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration such as 30s, 5m or 1h30m", s)
	case v < minimum:
		return 0, fmt.Errorf("%s is too short: the minimum is %s", v, minimum)
	case v > maximum:
		return 0, fmt.Errorf("%s is too long: the maximum is %s", v, maximum)
	}
	return v, nil
}

// FormatDuration formats a duration without its zeros, as in 1m and not 1m0s.
func FormatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

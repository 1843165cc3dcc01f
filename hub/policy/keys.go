package policy

import (
	"maps"
	"slices"
	"strconv"
	"time"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Keys returns the keys of the fleet's policy: what they mean, and which values they take.
// The docs and the chart say the same; a test compares them.
func Keys() []readapi.PolicyKey {
	const number, duration = readapi.PolicyNumber, readapi.PolicyDuration
	count := strconv.Itoa
	slots, retries, longest := count(v1alpha1.MaxSlots), count(apipolicy.MaxRetries), apipolicy.FormatDuration(apipolicy.MaxDuration)
	budget := count(maxFleetConcurrency)
	keys := []readapi.PolicyKey{
		{Name: apipolicy.KeyConcurrency, Kind: number, Least: "0", Most: slots, Meaning: "Imports at a time, 0 to 256. 0 pauses. In a member's own ConfigMap, none is the default."},
		{Name: "retryLimit", Kind: number, Least: "0", Most: retries, Meaning: "Retries of a failed import, 0 to 100."},
		{Name: "retryBackoffDuration", Kind: duration, Least: "0s", Most: longest, Meaning: "Wait before the first retry. It doubles each time, less up to a fifth at random."},
		{Name: "maxRetryBackoff", Kind: duration, Least: "0s", Most: longest, Meaning: "The longest wait."},
		{Name: "attemptTimeout", Kind: duration, Least: "1s", Most: longest, Meaning: "Ends an attempt, however well it progresses."},
		{Name: "stallTimeout", Kind: duration, Least: "1s", Most: longest, Meaning: "Ends an attempt that does not progress, and gives up a snapshot that does not become ready."},
		{Name: "maxPriority", Kind: number, Least: "0", Most: count(apipolicy.MaxPriority), Meaning: "The highest `spec.priority` that counts. 0 makes the queue first in, first out."},
		{Name: "resyncLimit", Kind: number, Least: "0", Most: retries, Meaning: "How often in 24 hours the lost storage of one image is restored."},
		{Name: "preflight", Kind: readapi.PolicyBoolean, Meaning: "Ask HTTP sources for the image before it gets a slot."},
		{Name: apipolicy.KeyNamespaceShare, Kind: number, Least: "0", Most: slots, Default: "0", Meaning: "Slots of one namespace while others wait, 0 to 256. 0 means no limit."},
		{Name: apipolicy.KeyPreflightAllow, Kind: readapi.PolicyHosts, Meaning: "Internal sources to ask as well: CIDRs, hosts and `*.suffix`, up to 64."},
		{Name: apipolicy.KeyWindows, Kind: readapi.PolicyWindows, Meaning: "Times at which another concurrency applies, as a YAML list."},
		{Name: apipolicy.KeySafeConcurrency, Kind: number, Least: "0", Most: slots, Default: "0", Meaning: "Imports of a member without a grant, 0 to 256."},
		{Name: KeyWeight, Kind: number, Least: "1", Most: count(maxWeight), Default: "1", Meaning: "Weight of a member against the others, 1 to 1000."},
		{Name: KeyFleetConcurrency, Kind: number, Least: "0", Most: budget, Meaning: "Imports at a time in the whole fleet, 0 to 100000. Without it there is no fleet-wide budget."},
		{Name: apipolicy.KeyFleetSources, Kind: readapi.PolicyGroups, Meaning: "Groups of hosts with budgets of their own, as a YAML list."},
		{Name: KeyGrantDuration, Kind: duration, Least: apipolicy.FormatDuration(minGrantDuration), Most: apipolicy.FormatDuration(maxGrantDuration), Default: apipolicy.FormatDuration(defaultGrantDuration), Meaning: "How long a grant holds, 15s to 24h."},
		{Name: KeyExcessTolerance, Kind: duration, Least: apipolicy.FormatDuration(minExcessTolerance), Most: longest, Default: apipolicy.FormatDuration(defaultExcessTolerance), Meaning: "How long more than was granted counts, 1s to `attemptTimeout`."},
		{Name: KeyOverrides, Kind: readapi.PolicyOverrides, Meaning: "Keys for single members, or for those with a label, as a YAML list."},
	}
	defaults := apipolicy.Default().ToData()
	for i := range keys {
		k := &keys[i]
		k.FleetOnly = isFleetOnlyKey(k.Name)
		if k.Default == "" {
			k.Default = shorten(k.Kind, defaults[k.Name])
		}
	}
	return keys
}

// shorten writes a duration as people do.
func shorten(kind readapi.PolicyKind, text string) string {
	d, err := time.ParseDuration(text)
	if kind != readapi.PolicyDuration || err != nil {
		return text
	}
	return apipolicy.FormatDuration(d)
}

// Written returns the data of the ConfigMap that the policy was read from.
func (p *Policy) Written() map[string]string { return maps.Clone(p.written) }

// OverrideUses returns each override, with how many members it matches and for how many it
// decides each of its keys.
func (p *Policy) OverrideUses(members []Member) []readapi.PolicyOverride {
	uses := make([]readapi.PolicyOverride, len(p.overrides))
	decides := make([]map[string]int, len(p.overrides))
	for i := range p.overrides {
		uses[i], decides[i] = readapi.PolicyOverride{Source: p.overrides[i].source}, map[string]int{}
	}
	for _, m := range members {
		_, deciding, applied := p.mergeOverrides(m)
		for _, i := range applied {
			uses[i].Members++
		}
		for key, i := range deciding {
			decides[i][key]++
		}
	}
	for i := range p.overrides {
		for _, key := range slices.Sorted(maps.Keys(p.overrides[i].values)) {
			uses[i].Keys = append(uses[i].Keys, readapi.PolicyOverrideKey{Name: key, Value: p.overrides[i].values[key], Members: decides[i][key]})
		}
	}
	return uses
}

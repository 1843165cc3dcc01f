package budget

import (
	"fmt"
	"os"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// All that a model allocates is kept.
func init() { debug.SetGCPercent(400) }

// explore visits all states within the bounds. It returns their number and, if one
// violates the budget, the steps to it.
func (x *explorer) explore() (states int, broken []string) {
	type visit struct {
		w    world
		from int
		what string
		at   int
	}
	all := []visit{{w: x.initialWorld(), from: -1}}
	x.seen = map[worldKey]struct{}{}
	for i := 0; i < len(all) && len(all) < x.most; i++ {
		w := all[i].w
		x.forEachStep(&w, func(what string, next world) {
			key := next.stateKey()
			if _, known := x.seen[key]; known || broken != nil {
				return
			}
			x.seen[key] = struct{}{}
			all = append(all, visit{next, i, what, next.now})
			if x.exceedsBudget(&w, &next) || x.standsStill(&next) {
				for v := len(all) - 1; v >= 0; v = all[v].from {
					broken = append([]string{fmt.Sprintf("t%d %s;", all[v].at, all[v].what)}, broken...)
				}
			}
		})
		all[i].w = world{}
		if broken != nil {
			break
		}
	}
	return len(x.seen), broken
}

var scenarios = map[string]scenario{
	"one for two":                  {total: 1, ticks: 3, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 1}},
	"asked again":                  {total: 1, ticks: 3, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{2, 1}, reports: [2]int{4, 2}, long: true},
	"two for two":                  {total: 2, ticks: 1, concurrency: 2, wanted: [2]int{2, 1}, sends: [2]int{1, 1}, reports: [2]int{4, 1}},
	"reboot and expiry":            {total: 1, ticks: 3, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{3, 1}, reboots: 1, long: true},
	"reboot":                       {total: 1, ticks: 1, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{3, 1}, reboots: 1},
	"failover":                     {total: 1, ticks: 1, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 1}, failover: 1},
	"unlimited before":             {total: 1, ticks: 2, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{3, 1}, unlimited: [2]bool{true, false}},
	"safe":                         {total: 2, ticks: 2, concurrency: 2, wanted: [2]int{2, 2}, sends: [2]int{1, 1}, reports: [2]int{2, 1}, safe: [2]int{1, 0}},
	"lowered and failed over":      {total: 2, ticks: 0, concurrency: 2, wanted: [2]int{2, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 1}, failover: 1},
	"left":                         {total: 1, ticks: 1, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{1, 2}, failover: 1, leaves: true},
	"rebuilt":                      {total: 1, ticks: 1, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{1, 2}, failover: 1, rebuilds: true},
	"rebuilt and expiry":           {total: 1, ticks: 3, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{1, 2}, failover: 1, rebuilds: true, long: true},
	"no report":                    {total: 2, ticks: 0, concurrency: 2, wanted: [2]int{2, 1}, runs: 2, sends: [2]int{0, 1}, reports: [2]int{2, 1}, failover: 1, forgets: true},
	"no report and expiry":         {total: 2, ticks: 3, concurrency: 2, wanted: [2]int{2, 1}, runs: 2, sends: [2]int{0, 1}, reports: [2]int{1, 1}, failover: 1, forgets: true, long: true},
	"lied":                         {total: 2, ticks: 2, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 2}, lies: 2, tolerance: tick / 2},
	"lied and failed over":         {total: 2, ticks: 2, concurrency: 1, wanted: [2]int{1, 0}, sends: [2]int{1, 0}, reports: [2]int{1, 2}, lies: 2, failover: 1, tolerance: tick / 2},
	"restored":                     {total: 1, ticks: 2, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{1, 1}, restores: 1},
	"both restored":                {total: 2, ticks: 1, concurrency: 2, wanted: [2]int{2, 1}, sends: [2]int{1, 1}, reports: [2]int{1, 1}, restores: 1, bothAhead: true, tolerance: tick / 2},
	"restored, claims spent":       {total: 2, ticks: 1, concurrency: 2, wanted: [2]int{2, 1}, sends: [2]int{1, 1}, reports: [2]int{1, 1}, restores: 1, bothAhead: true, tolerance: tick / 2, spent: true},
	"lowered, later failed over":   {total: 2, ticks: 1, concurrency: 2, wanted: [2]int{2, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 1}, failover: 1, tolerance: tick / 2, long: true},
	"written off":                  {total: 1, ticks: 1, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{1, 1}, failover: 1, leaves: true, writesOff: true},
	"a window ends":                {total: 2, ticks: 2, concurrency: 2, wanted: [2]int{2, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 1}, window: window{edge: 1}},
	"a window ends late":           {total: 1, ticks: 3, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{2, 1}, reports: [2]int{2, 1}, window: window{edge: 2}},
	"a window ends, failover":      {total: 1, ticks: 2, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 1}, failover: 1, window: window{edge: 2}},
	"a smaller window follows":     {total: 2, ticks: 2, concurrency: 2, wanted: [2]int{2, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 1}, window: window{edge: 2, after: 1}},
	"a larger window follows":      {total: 1, ticks: 2, concurrency: 2, wanted: [2]int{2, 1}, sends: [2]int{1, 1}, reports: [2]int{3, 1}, window: window{edge: 1, after: 2}},
	"away at the edge":             {total: 1, ticks: 3, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 1}, window: window{edge: 2, goesAway: true}},
	"restored at the edge":         {total: 2, ticks: 2, concurrency: 2, wanted: [2]int{2, 1}, sends: [2]int{1, 1}, reports: [2]int{1, 1}, restores: 1, window: window{edge: 2, after: 1}},
	"the hub's clock is put back":  {total: 1, ticks: 3, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 1}, window: window{edge: 2, setsBack: true}},
	"an agent's clock is put back": {total: 1, ticks: 3, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 1}, window: window{edge: 2, setsOwnBack: true}},
	"quarantined":                  {total: 1, ticks: 2, concurrency: 1, wanted: [2]int{1, 1}, sends: [2]int{1, 1}, reports: [2]int{2, 2}, lies: 1, quarantines: true, tolerance: tick / 2},
}

// maxStates exceeds the number of states of every scenario: each is explored completely.
const maxStates = 3_000_000

func TestBudgetIsKept(t *testing.T) {
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) {
			if s.long && os.Getenv("OT_FLEET_LONG") == "" {
				t.Skip("OT_FLEET_LONG is not set")
			}
			s.most = maxStates
			x := &explorer{scenario: s}
			states, broken := x.explore()
			t.Logf("%d states", states)
			assert.Empty(t, broken)
			assert.Less(t, states, maxStates)
			assert.Greater(t, states, 1000)
		})
	}
}

func TestPlantedBugsAreFound(t *testing.T) {
	for name, tt := range map[string]struct {
		in     string
		faults faults
	}{
		"the agent counts from its reading":                    {"one for two", faults{fromReading: true}},
		"the agent takes up what another asked for":            {"reboot", faults{oldNonce: true}},
		"the agent starts imports after the grant has expired": {"one for two", faults{goesOn: true}},
		"the agent keeps the larger one":                       {"two for two", faults{largest: true}},
		"attemptTimeout is forgotten":                          {"one for two", faults{forgetTimeout: true}},
		"freed on sending":                                     {"two for two", faults{freeOnSending: true}},
		"slots are ignored":                                    {"two for two", faults{ignoreSlots: true}},
		"unlimited before is ignored":                          {"unlimited before", faults{ignoreUnlimited: true}},
		"stored grants are forgotten":                          {"failover", faults{forgetStored: true}},
		"of stored grants, the newest alone counts":            {"lowered and failed over", faults{forgetPossible: true}},
		"no fence":                                  {"failover", faults{noFence: true}},
		"writes are not guarded":                    {"failover", faults{unguarded: true}},
		"safe is not in the sum":                    {"safe", faults{safeUncounted: true}},
		"late reports count as new":                 {"two for two", faults{oldReport: true}},
		"what departed is forgotten":                {"left", faults{forgetDeparted: true}},
		"what another cluster had is forgotten":     {"rebuilt", faults{forgetDeparted: true}},
		"a rebuilt cluster is taken for the former": {"rebuilt", faults{oneCluster: true}},
		"no report is taken for nothing":            {"no report", faults{missingIsNone: true}},
		"what the hub does not know never counts":   {"restored", faults{plainCap: true}},
		"repeated claims extend the tolerance":      {"lied", faults{toleranceAnew: true}},
		"what is claimed counts without end":        {"lied", faults{trustLiar: true}},
		"a write-off is lost at a failover":         {"written off", faults{forgetWriteOff: true}},
		"a restore is not noticed":                  {"both restored", faults{forgetRestore: true}},
		"whose claims are spent is no witness":      {"restored, claims spent", faults{spentBars: true}},
		"a grant outlives its window":               {"a window ends late", faults{outlivesWindow: true}},
		"a grant outlives it while the hub is away": {"away at the edge", faults{outlivesWindow: true}},
		"a grant outlives it at a failover":         {"a window ends, failover", faults{outlivesWindow: true}},
		"a grant outlives it after a restore":       {"restored at the edge", faults{outlivesWindow: true}},
		"a grant outlives it on a clock put back":   {"the hub's clock is put back", faults{outlivesWindow: true}},
		"a window that has ended goes on":           {"a window ends", faults{missesEdge: true}},
		"a grant ends at a time of day":             {"an agent's clock is put back", faults{endsByTimeOfDay: true}},
		"first seen is lost at a failover":          {"lied and failed over", faults{forgetFirstSeen: true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := scenarios[tt.in]
			s.most = maxStates
			x := &explorer{scenario: s, faults: tt.faults}
			states, broken := x.explore()
			require.NotEmpty(t, broken, "not found in %d states", states)
			t.Logf("%d states: %v", states, broken)
		})
	}
}

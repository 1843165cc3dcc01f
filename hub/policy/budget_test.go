package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/hub/policy"
)

const euGroup = "- {name: eu, hosts: ['*.eu.example.com'], concurrency: 4}"

func TestParseBudget(t *testing.T) {
	p := mustParse(t, data{"fleetConcurrency": "10", "fleetSources": euGroup, "fleetWeight": "2", "safeConcurrency": "1", "overrides": "- {cluster: a, safeConcurrency: 3, fleetWeight: 5}"})
	b := p.Budget(time.Now())
	require.NotNil(t, b)
	assert.Equal(t, int32(10), b.Concurrency)
	assert.Equal(t, 5*time.Minute, b.GrantDuration)
	assert.Equal(t, apipolicy.Sources{{Name: "eu", Hosts: []string{"*.eu.example.com"}}}, b.SourceGroups())
	assert.Equal(t, int32(4), *b.Sources[0].Concurrency)
	assert.Equal(t, int32(5), p.MemberWeight("a", nil))
	assert.Equal(t, int32(2), p.MemberWeight("b", nil))

	got, _, errs := p.ForMember("a", nil)
	require.Empty(t, errs)
	assert.Equal(t, "3", got["safeConcurrency"])
	assert.JSONEq(t, `[{"name":"eu","hosts":["*.eu.example.com"]}]`, got["fleetSources"])
	assert.NotContains(t, got, "fleetWeight")
	assert.NotContains(t, got, "fleetConcurrency")
}

func TestWithoutBudgetNoMemberIsLimited(t *testing.T) {
	p := mustParse(t, data{"safeConcurrency": "1", "fleetSources": euGroup, "fleetWeight": "2", "overrides": "- {cluster: a, safeConcurrency: 3}"})
	assert.Nil(t, p.Budget(time.Now()))
	got, _, errs := p.ForMember("a", nil)
	require.Empty(t, errs)
	assert.Equal(t, apipolicy.Default().ToData(), got)
	assert.Empty(t, p.ValidateMembers([]policy.Member{{Name: "a"}}))
}

func TestBudgetLimitsMembersWithoutSafeShare(t *testing.T) {
	got, _, errs := mustParse(t, data{"fleetConcurrency": "0"}).ForMember("a", nil)
	require.Empty(t, errs)
	assert.Equal(t, "0", got["safeConcurrency"])
}

func TestSafeSharesStayWithinBudget(t *testing.T) {
	p := mustParse(t, data{"fleetConcurrency": "3", "safeConcurrency": "1", "overrides": "- {cluster: a, safeConcurrency: 2}"})
	assert.Empty(t, p.ValidateMembers([]policy.Member{{Name: "a"}, {Name: "b"}}))
	errs := p.ValidateMembers([]policy.Member{{Name: "a"}, {Name: "b"}, {Name: "c"}})
	require.Len(t, errs, 1)
	assert.Equal(t, "safeConcurrency: the safe shares of all 3 members are 4 together, which is more than fleetConcurrency, 3", errs[0].Error())
}

func TestPreviewOfBudget(t *testing.T) {
	members := []policy.Member{{Name: "a"}, {Name: "b"}}
	now := mustParse(t, data{"concurrency": "4"})
	then := mustParse(t, data{"concurrency": "4", "fleetConcurrency": "6", "fleetSources": euGroup, "overrides": "- {cluster: a, safeConcurrency: 1, fleetWeight: 3}"})
	assert.Equal(t, `2 of 2 members would change. Concurrency: 0 gain, 0 lose, the fleet's sum goes from 8 to 8 (+0).
The budget of the fleet: fleetConcurrency none→6, fleetSources none→eu:4.
MEMBER  NOW  THEN  CHANGE  OTHER KEYS                                                  FROM
a       4    4     0       fleetSources changed, fleetWeight 1→3, safeConcurrency -→1  override cluster=a
b       4    4     0       fleetSources changed, safeConcurrency -→0                   fleet default
`, policy.Preview(now, then, members, time.Now()))
	assert.Contains(t, policy.Preview(then, now, members, time.Now()), "fleetConcurrency 6→none")
	assert.Contains(t, policy.Preview(then, now, members, time.Now()), "safeConcurrency 1→-")
	over := mustParse(t, data{"fleetConcurrency": "0", "safeConcurrency": "1"})
	assert.Contains(t, policy.Preview(now, over, members, time.Now()), "It would be refused: safeConcurrency: the safe shares of all 2 members are 2 together")
}

// TestComparisonShowsEachChangeOfTheBudget: pipelines apply a policy of which nothing changes unseen.
func TestComparisonShowsEachChangeOfTheBudget(t *testing.T) {
	windows := func(n int, last string) string {
		var out strings.Builder
		for i := range n {
			fmt.Fprintf(&out, "- {cron: \"0 %d * * *\", duration: 1h, fleetConcurrency: 2}\n", i)
		}
		return out.String() + last
	}
	hosts := "a.example.com, b.example.com, c.example.com, d.example.com, e.example.com"
	const sixth, other = "- {cron: \"0 20 * * *\", duration: 2h, fleetConcurrency: 9}", "- {cron: \"0 20 * * *\", duration: 2h, fleetConcurrency: 8}"
	for name, tt := range map[string]struct {
		key, now, then string
		wantChanged    int
		want           string
	}{
		"nothing":        {"fleetSources", euGroup, euGroup, 0, ""},
		"other hosts":    {"fleetSources", euGroup, "- {name: eu, hosts: ['*.example.com'], concurrency: 4}", 2, "hosts of eu *.eu.example.com→*.example.com"},
		"one host more":  {"fleetSources", "- {name: eu, hosts: [" + hosts + "], concurrency: 4}", "- {name: eu, hosts: [" + hosts + ", f.example.com], concurrency: 4}", 2, "hosts of eu after the first 5 none→f.example.com"},
		"of two groups":  {"fleetSources", euGroup + "\n- {name: us, hosts: [us.example.com], concurrency: 1}", euGroup + "\n- {name: us, hosts: [us.example.org], concurrency: 1}", 2, "hosts of us us.example.com→us.example.org"},
		"another limit":  {"fleetSources", euGroup, "- {name: eu, hosts: ['*.eu.example.com'], concurrency: 3}", 0, "fleetSources eu:4→eu:3"},
		"another group":  {"fleetSources", euGroup, "- {name: us, hosts: ['*.eu.example.com'], concurrency: 4}", 2, "fleetSources eu:4→us:4"},
		"the sixth":      {"windows", windows(5, sixth), windows(5, other), 0, `windows of fleetConcurrency after the first 5 9 at "0 20 * * *" UTC for 2h→8 at "0 20 * * *" UTC for 2h`},
		"the sixth gone": {"windows", windows(5, sixth), windows(5, ""), 0, `windows of fleetConcurrency after the first 5 9 at "0 20 * * *" UTC for 2h→none`},
		"a first one":    {"windows", "", sixth, 0, `windows of fleetConcurrency none→9 at "0 20 * * *" UTC for 2h`},
	} {
		t.Run(name, func(t *testing.T) {
			now := mustParse(t, data{"fleetConcurrency": "10", tt.key: tt.now})
			then := mustParse(t, data{"fleetConcurrency": "10", tt.key: tt.then})
			c := policy.Compare(now, then, []policy.Member{{Name: "a"}, {Name: "b"}}, time.Now())
			assert.Equal(t, tt.want, c.BudgetChange)
			require.Len(t, c.Changed, tt.wantChanged)
			for _, m := range c.Changed {
				assert.Equal(t, "fleetSources changed", m.OtherChanges)
			}
		})
	}
}

// TestNoListChangeIsHidden: however long the lists are, and wherever they differ.
func TestNoListChangeIsHidden(t *testing.T) {
	host := rapid.SampledFrom([]string{"a.example.com", "b.example.com", "*.example.com"})
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(label string) []string { return rapid.SliceOfN(host, 1, 9).Draw(rt, label) }
		parse := func(hosts []string) *policy.Policy {
			return mustParse(t, data{"fleetConcurrency": "1", "fleetSources": "- {name: a, hosts: ['" + strings.Join(hosts, "','") + "'], concurrency: 1}"})
		}
		now, then := draw("now"), draw("then")
		c := policy.Compare(parse(now), parse(then), []policy.Member{{Name: "m"}}, time.Now())
		assert.Equal(rt, slices.Equal(now, then), c.BudgetChange == "", c.BudgetChange)
		assert.Equal(rt, slices.Equal(now, then), len(c.Changed) == 0)
		if before, after, changes := strings.Cut(c.BudgetChange, "→"); changes {
			assert.NotEqual(rt, before[strings.LastIndex(before, "hosts of a")+len("hosts of a "):], after)
		}
	})
}

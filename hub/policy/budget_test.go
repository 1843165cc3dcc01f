package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
MEMBER  NOW  THEN  CHANGE  OTHER KEYS                            FROM
a       4    4     0       fleetWeight 1→3, safeConcurrency -→1  override cluster=a
b       4    4     0       safeConcurrency -→0                   fleet default
`, policy.Preview(now, then, members, time.Now()))
	assert.Contains(t, policy.Preview(then, now, members, time.Now()), "fleetConcurrency 6→none")
	assert.Contains(t, policy.Preview(then, now, members, time.Now()), "safeConcurrency 1→-")
	over := mustParse(t, data{"fleetConcurrency": "0", "safeConcurrency": "1"})
	assert.Contains(t, policy.Preview(now, over, members, time.Now()), "It would be refused: safeConcurrency: the safe shares of all 2 members are 2 together")
}

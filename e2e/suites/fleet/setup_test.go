//go:build linux

// Package fleet_test shows what people do with a hub and its members through the two charts
// and their permissions: budgets, policy changes, registration and removal, versions that
// differ, and what the read API and the metrics say of it.
package fleet_test

import (
	"context"
	"testing"

	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// The members: an override of the policy names frankfurt and selects edge by its label.
const (
	frankfurt = "frankfurt"
	edge      = "edge"
)

var policyData = map[string]string{
	"concurrency":          "3",
	"retryLimit":           "1",
	"retryBackoffDuration": "1s",
	"preflight":            "false",
	"overrides": `
- cluster: frankfurt
  concurrency: "5"
- selector: {matchLabels: {edge: "true"}}
  concurrency: "1"
`,
}

// shared is the fleet of all tests. A test leaves it as it found it.
var shared *testFleet

type testFleet struct{ *fleet.Fleet }

func TestMain(m *testing.M) {
	pull := program.UsesPullMode(frankfurt, frankfurt)
	fleet.RunTests(m, fleet.Options{
		Policy: policyData,
		Members: []fleet.MemberOptions{
			{
				Name: frankfurt, Unregistered: !pull, Pull: pull,
				Controllers: []string{"serviceaccount-token-controller"}, // for the token in TestPages
			},
			{Name: edge, Labels: map[string]string{"edge": "true"}},
		},
	}, func(ctx context.Context, f *fleet.Fleet) error {
		shared = &testFleet{f}
		if pull {
			return nil
		}
		cfg, err := f.Members[frankfurt].HubConfig(ctx)
		if err != nil {
			return err
		}
		return program.CreateMemberSecret(ctx, f, frankfurt, cfg)
	})
}

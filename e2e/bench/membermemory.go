//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	// baseMembers join before the members whose memory is measured: what a hub needs once is not
	// theirs.
	baseMembers, measuredMembers = 50, 150
	// 158 KiB of heap, half as much again that GOGC 50 leaves to garbage, and 58 KiB of stacks were
	// 348 to 369 KiB in two runs.
	maxResidentPerMember = 400 << 10
)

// measureMemberMemory measures what one idle member costs a hub with one replica.
func measureMemberMemory(ctx context.Context) (figures []figureRow, notes []string, err error) {
	s, err := startSingleHub(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if _, err := s.joinMembers(ctx, "base", baseMembers); err != nil {
		return nil, nil, err
	}
	before, goroutinesBefore, err := s.readOnlyReplica(ctx)
	if err != nil {
		return nil, nil, err
	}
	if _, err := s.joinMembers(ctx, "idle", measuredMembers); err != nil {
		return nil, nil, err
	}
	after, goroutinesAfter, err := s.readOnlyReplica(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := s.saveProfiles(ctx); err != nil {
		return nil, nil, err
	}
	each := after.perThingSince(before, measuredMembers)
	return []figureRow{
		figureAtMost("hub memory per idle member: resident", each.resident, maxResidentPerMember, fmt.Sprintf("%.0f KiB", each.resident/1024)).withGoal("350 KiB"),
		figureInfo("the same: heap, goroutines", fmt.Sprintf("%.0f KiB, %.1f", each.heap/1024, (goroutinesAfter-goroutinesBefore)/measuredMembers)),
	}, []string{fmt.Sprintf("member-memory: from %d to %d members of one replica, each at rest and after a collection; neither GOGC nor GOMEMLIMIT is set.", baseMembers, baseMembers+measuredMembers)}, nil
}

// readOnlyReplica reads the memory and the goroutines of the only replica.
func (s *hubSetup) readOnlyReplica(ctx context.Context) (m memoryUse, goroutines float64, err error) {
	if m, err = readMemory(ctx, s.replicas[0], s.replicas[0].pprof); err != nil {
		return m, 0, err
	}
	goroutines, err = readMetric(ctx, s.replicas[0], "go_goroutines")
	return m, goroutines, err
}

// saveProfiles writes the replicas' profiles to the directory of the logs, if one is given.
func (s *hubSetup) saveProfiles(ctx context.Context) error {
	dir := os.Getenv(logsVariable)
	if dir == "" {
		return nil
	}
	for _, r := range s.replicas {
		for suffix, profile := range map[string]string{"heap": "heap", "goroutine": "goroutine", "memstats": "heap?debug=1"} {
			content, err := readProfile(ctx, r.pprof, profile)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, r.name+"."+suffix), content, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

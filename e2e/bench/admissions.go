//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/pelotech/ot-fleet/e2e/harness/member"
)

const admissionCount = 200

// measureAdmissions measures how fast freed slots are taken when imports take no time: with the
// agent's own client limits, and with practically none.
func measureAdmissions(ctx context.Context) ([]figureRow, []string, error) {
	var figures []figureRow
	var notes []string
	for _, o := range []struct {
		budget int
		qps    string
		name   string
	}{{4, "", "4 slots"}, {64, "", "64 slots"}, {64, "5000", "64 slots, --kube-api-qps=5000"}} {
		rate, asked, err := admissionRate(ctx, o.budget, o.qps)
		if err != nil {
			return nil, nil, err
		}
		serial := 0.0
		for _, what := range ledgerRequests {
			for _, r := range asked.withOperation(what) {
				serial += r.end.Sub(r.start).Seconds() / admissionCount
			}
		}
		figures = append(figures, figureInfo("admissions per second, "+o.name, fmt.Sprintf("%.1f", rate)))
		notes = append(notes, fmt.Sprintf("admissions, %s: %.2f requests per image; an admission every %.1f ms, for which the API server worked %.1f ms on requests that come from the ledger's controller alone, those beside each other summed up",
			o.name, float64(len(asked))/admissionCount, 1000/rate, 1000*serial))
		notes = append(notes, indentLines(asked.breakdown(admissionCount))...)
	}
	return figures, notes, nil
}

// ledgerRequests are the requests of the ledger controller, which has one worker. The image
// controller makes few of them when nothing fails.
var ledgerRequests = []string{
	"get syncledgers", "update syncledgers/status", "get vmdiskimages", "create datavolumes",
	"list datavolumes", "list persistentvolumeclaims", "list pods", "get datavolumes", "get persistentvolumeclaims",
}

// admissionRate processes blank images and returns how many DataVolumes were created per second.
func admissionRate(ctx context.Context, budget int, qps string) (rate float64, asked requestList, err error) {
	var args []string
	if qps != "" {
		args = append(args, "--kube-api-qps="+qps)
	}
	s, err := startMemberSetup(ctx, member.Options{Name: "admissions", InstantImporter: true}, budget, args...)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.enqueueImages(ctx, budget+admissionCount, admissionCount, s.newBlankImage); err != nil {
		return 0, nil, err
	}
	if _, asked, err = s.measureSpent(admissionCount, func() error { return s.processImages(ctx, admissionCount) }); err != nil {
		return 0, nil, err
	}
	created := asked.withOperation("create datavolumes")
	if len(created) < admissionCount {
		return 0, nil, fmt.Errorf("%d DataVolumes were created for %d images", len(created), admissionCount)
	}
	first, last := created[0].end, created[len(created)-1].end
	return float64(len(created)-1) / last.Sub(first).Seconds(), asked, nil
}

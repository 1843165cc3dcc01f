//go:build linux

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// auditLog is the API server's own log of one account's requests. A proxy would distort what is
// measured.
type auditLog struct {
	dir    string
	remove func() error
}

// auditPolicy omits Leases, which are renewed by the clock and not per image.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- {level: None, resources: [{group: coordination.k8s.io}]}
- {level: None, verbs: [watch]}
- {level: None, nonResourceURLs: ["*"]}
- {level: Metadata, users: ["system:serviceaccount:%s"], omitManagedFields: true}
`

// newAccountAudit logs the requests of a ServiceAccount, given as namespace:name.
func newAccountAudit(account string) (*auditLog, error) {
	return newPolicyAudit(fmt.Sprintf(auditPolicy, account))
}

// newPolicyAudit logs requests by an audit policy.
func newPolicyAudit(policy string) (*auditLog, error) {
	dir, remove, err := process.TempDir("ot-fleet-audit-")
	if err != nil {
		return nil, err
	}
	a := &auditLog{dir, remove}
	if err := os.WriteFile(a.policyPath(), []byte(policy), 0o600); err != nil {
		return nil, fmt.Errorf("writing the audit policy: %w", err)
	}
	return a, nil
}

func (a *auditLog) policyPath() string { return filepath.Join(a.dir, "policy.yaml") }
func (a *auditLog) logPath() string    { return filepath.Join(a.dir, "audit.log") }

func (a *auditLog) apiServerArgs() []string {
	return []string{"--audit-policy-file=" + a.policyPath(), "--audit-log-path=" + a.logPath(), "--audit-log-maxsize=4096"}
}

// size returns the size of the log.
func (a *auditLog) size() int64 {
	info, err := os.Stat(a.logPath())
	if err != nil {
		return 0 // no request yet
	}
	return info.Size()
}

// auditedRequest is one request of the log.
type auditedRequest struct {
	operation string // verb and resource
	start     time.Time
	end       time.Time
	code      int
}

// requestsSince returns the requests that were logged after an offset.
func (a *auditLog) requestsSince(offset int64) (requestList, error) {
	text, err := os.ReadFile(a.logPath())
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	var all requestList
	for line := range bytes.Lines(text[offset:]) {
		var e struct {
			Verb                     string
			RequestReceivedTimestamp time.Time
			StageTimestamp           time.Time
			ObjectRef                struct{ Resource, Subresource string }
			ResponseStatus           struct{ Code int }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		what := e.Verb + " " + e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			what += "/" + e.ObjectRef.Subresource
		}
		all = append(all, auditedRequest{what, e.RequestReceivedTimestamp, e.StageTimestamp, e.ResponseStatus.Code})
	}
	return all, nil
}

type requestList []auditedRequest

// isWrite reports whether a request stores something. Reviews do not, although they are created.
func (r auditedRequest) isWrite() bool {
	return !strings.HasPrefix(r.operation, "get ") && !strings.HasPrefix(r.operation, "list ") && !strings.HasSuffix(r.operation, "reviews")
}

// countWrites counts the writes, including those of Events.
func (rs requestList) countWrites() int {
	n := 0
	for _, r := range rs {
		if r.isWrite() {
			n++
		}
	}
	return n
}

// withOperation returns the requests of an operation, in the order of their end.
func (rs requestList) withOperation(what string) requestList {
	var some requestList
	for _, r := range rs {
		if r.operation == what {
			some = append(some, r)
		}
	}
	slices.SortStableFunc(some, func(a, b auditedRequest) int { return a.end.Compare(b.end) })
	return some
}

// breakdown lists the requests per image and the API server's latency, by operation.
func (rs requestList) breakdown(images int) []string {
	kinds := map[string][]auditedRequest{}
	for _, r := range rs {
		kinds[r.operation] = append(kinds[r.operation], r)
	}
	type row struct {
		text string
		spent,
		most time.Duration
	}
	rows := make([]row, 0, len(kinds))
	for what, some := range kinds {
		var spent, most time.Duration
		failed := 0
		for _, r := range some {
			took := r.end.Sub(r.start)
			spent, most = spent+took, max(most, took)
			if r.code >= 400 {
				failed++
			}
		}
		text := fmt.Sprintf("%5.2f × %-34s %6.1f ms each, %4.0f at most", float64(len(some))/float64(images), what,
			spent.Seconds()*1000/float64(len(some)), most.Seconds()*1000)
		if failed > 0 {
			text += fmt.Sprintf(", %d refused", failed)
		}
		rows = append(rows, row{text, spent, most})
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(b.spent, a.spent) })
	texts := make([]string, len(rows))
	for i, r := range rows {
		texts[i] = r.text
	}
	return texts
}

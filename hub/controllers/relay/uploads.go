package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// What is copied of one report may be uploadBurst bytes at once, more than the largest that an
	// agent writes, and uploadRate bytes per second on average: else one member fills the hub's etcd,
	// which keeps what was overwritten for minutes.
	uploadBurst = 64 << 20
	uploadRate  = 512 << 10
	// minReportedWait is the shortest delay of a report that the member's status mentions.
	minReportedWait = 10 * time.Second
)

// uploadBudget delays the next sync of a member until what the former ones have copied is paid for.
// The zero value owes nothing.
type uploadBudget struct{ paidAt time.Time }

// record adds the bytes that one sync has copied.
func (b *uploadBudget) record(bytes int, now time.Time) {
	const burst = uploadBurst * time.Second / uploadRate
	if earliest := now.Add(-burst); b.paidAt.Before(earliest) {
		b.paidAt = earliest
	}
	b.paidAt = b.paidAt.Add(time.Duration(bytes) * time.Second / uploadRate)
}

// wait returns how long the next sync has to wait.
func (b *uploadBudget) wait(now time.Time) time.Duration { return max(0, b.paidAt.Sub(now)) }

// describeUploadWait says why a report is late; empty for a short wait.
func describeUploadWait(wait time.Duration) string {
	if wait < minReportedWait {
		return ""
	}
	return fmt.Sprintf("the member's report changes faster than the hub stores, %d KiB per second, so it is copied with a delay: check what writes ClusterReports there, and whether it is the agent", uploadRate>>10)
}

// measuringClient counts the bytes of the objects that it writes.
type measuringClient struct {
	client.Client
	written int
}

func (c *measuringClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	c.measure(obj)
	return c.Client.Create(ctx, obj, opts...)
}

func (c *measuringClient) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	c.measure(obj)
	return c.Client.Update(ctx, obj, opts...)
}

func (c *measuringClient) measure(obj client.Object) {
	if text, err := json.Marshal(obj); err == nil { // else it is not written either
		c.written += len(text)
	}
}

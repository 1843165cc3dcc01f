package image

import (
	"fmt"
	"hash/fnv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/policy"
)

// ComputeBackoff returns the wait after the n-th attempt (from 1) since the last
// restart has failed: the policy's RetryBackoff, doubled per attempt up to
// MaxRetryBackoff, less up to a fifth. The spread is a hash of image and attempt:
// images that a broken source failed together do not retry together, and equal
// arguments give equal results.
func ComputeBackoff(p policy.Policy, uid types.UID, n int32) time.Duration {
	wait := p.RetryBackoff
	for i := int32(1); i < n && wait < p.MaxRetryBackoff; i++ {
		wait *= 2
	}
	wait = min(wait, p.MaxRetryBackoff)
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s/%d", uid, n)
	return wait - wait/5*time.Duration(h.Sum64()%1000)/1000
}

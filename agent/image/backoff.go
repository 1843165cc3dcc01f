package image

import (
	"fmt"
	"hash/fnv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/policy"
)

// ComputeBackoff is the wait after the n-th attempt of a round failed, n from 1: the
// policy's first wait, doubled for each further one up to its most, less up to
// a fifth. The spread is worked out from image and attempt, so that the images
// that a broken source failed together do not return together, and the same
// question has the same answer.
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

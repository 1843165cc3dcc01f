package helm

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/pelotech/ot-fleet/api/transport"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Bounds of the releases of one name. A release of the agent's chart has about 1 MiB, and
// Helm keeps 10 by default.
const (
	maxReleaseCost    = 4 << 20
	maxReleasesCost   = 32 << 20
	maxReleaseSecrets = 32
)

// boundedSecrets measures releases before Helm decodes them: they are compressed, and
// Helm decompresses and decodes all of them without a limit.
type boundedSecrets struct {
	typedcorev1.SecretInterface
}

// Get implements typedcorev1.SecretInterface.
func (s boundedSecrets) Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Secret, error) {
	secret, err := s.SecretInterface.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	if _, err := measureRelease(secret); err != nil {
		return nil, err
	}
	return secret, nil
}

// List implements typedcorev1.SecretInterface.
func (s boundedSecrets) List(ctx context.Context, options metav1.ListOptions) (*corev1.SecretList, error) {
	options.Limit = maxReleaseSecrets
	list, err := s.SecretInterface.List(ctx, options)
	if err != nil {
		return nil, err
	}
	if len(list.Items) > maxReleaseSecrets || list.Continue != "" {
		return nil, &transport.LimitError{Request: "a list of the Secrets of Helm's releases",
			Bound: fmt.Sprintf("has more than %d: delete the oldest", maxReleaseSecrets)}
	}
	var total int64
	for i := range list.Items {
		cost, err := measureRelease(&list.Items[i])
		if err != nil {
			return nil, err
		}
		if total += cost; total > maxReleasesCost {
			return nil, &transport.LimitError{Request: "a list of the Secrets of Helm's releases",
				Bound: fmt.Sprintf("has releases of more than %d MiB when decompressed: delete the oldest", maxReleasesCost>>20)}
		}
	}
	return list, nil
}

// measureRelease returns the cost of the release in a Secret. What Helm cannot read costs
// nothing.
func measureRelease(secret *corev1.Secret) (int64, error) {
	decoded := bufio.NewReader(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(secret.Data["release"])))
	var from io.Reader = decoded
	if start, err := decoded.Peek(3); err == nil && bytes.Equal(start, []byte{0x1f, 0x8b, 8}) {
		decompressed, err := gzip.NewReader(decoded)
		if err != nil {
			return 0, nil
		}
		from = decompressed
	}
	cost, within, err := transport.MeasureCost(from, maxReleaseCost)
	if err == nil && !within {
		return 0, &transport.LimitError{Request: "a request for Secret " + v1alpha1.Truncate(secret.Name, 253),
			Bound: fmt.Sprintf("has a release of more than %d MiB when decompressed: delete it", maxReleaseCost>>20)}
	}
	return cost, nil
}

package preflight

import (
	"context"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// headersOf returns the headers that CDI sends with a source. known is false where one cannot
// be read or sent: an answer to a request without it would say nothing of the image.
func (p *Prober) headersOf(ctx context.Context, s Source) (headers http.Header, known bool) {
	lines := splitLines(s.Headers)
	for _, name := range splitLines(s.HeaderSecrets) {
		values, err := p.secret(ctx, types.NamespacedName{Namespace: s.Namespace, Name: name})
		if err != nil {
			return nil, false
		}
		if _, problem := v1alpha1.FindHeaderProblem(values); problem != "" {
			return nil, false
		}
		for _, line := range values {
			lines = append(lines, string(line))
		}
	}
	headers = http.Header{}
	for _, line := range lines {
		name, value, ok := v1alpha1.ParseHeader(line)
		if !ok {
			return nil, false
		}
		headers.Add(name, value)
	}
	return headers, true
}

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// readSecret returns the values of a Secret, which stay in no cache.
func (r *ClusterReader) readSecret(ctx context.Context, key types.NamespacedName) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	if err := r.live.Get(ctx, key, secret); err != nil {
		return nil, err
	}
	return secret.Data, nil
}

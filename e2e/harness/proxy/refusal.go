package proxy

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Forbid answers that nothing may be done to these resources, such as
// "datavolumes": a program whose account has all rights runs as if it had not.
// It replaces what was refused before.
func (p *Proxy) Forbid(resources ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forbidden = resources
}

// denyForbidden answers a request to a resource that is refused, and tells whether it was one.
func (p *Proxy) denyForbidden(w http.ResponseWriter, r *http.Request) bool {
	p.mu.Lock()
	refused := p.forbidden
	p.mu.Unlock()
	parts := strings.Split(r.URL.Path, "/")
	at := slices.IndexFunc(parts, func(part string) bool { return slices.Contains(refused, part) })
	if at < 0 {
		return false
	}
	answer := apierrors.NewForbidden(schema.GroupResource{Resource: parts[at]}, "", nil).Status()
	answer.Kind, answer.APIVersion = "Status", "v1"
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(answer.Code))
	_ = json.NewEncoder(w).Encode(answer)
	return true
}

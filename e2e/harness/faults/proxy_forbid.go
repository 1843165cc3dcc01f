package faults

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Forbid answers 403 to all requests for these resources, such as "datavolumes", in place
// of those forbidden before.
func (p *Proxy) Forbid(resources ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forbidden = resources
}

// denyForbidden answers a request for a forbidden resource and reports whether it was one.
func (p *Proxy) denyForbidden(w http.ResponseWriter, r *http.Request) bool {
	p.mu.Lock()
	forbidden := p.forbidden
	p.mu.Unlock()
	parts := strings.Split(r.URL.Path, "/")
	at := slices.IndexFunc(parts, func(part string) bool { return slices.Contains(forbidden, part) })
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

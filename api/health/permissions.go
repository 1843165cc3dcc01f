package health

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Permission is one verb on one resource that RBAC can grant; in all namespaces if
// Namespace is empty.
type Permission struct {
	Namespace, Group, Resource, Subresource, Name, Verb string
}

// ParseRoles returns the permissions that the roles grant where they are bound in their
// own namespaces. The namespaces in the file are placeholders; namespaces maps them to
// the real ones.
func ParseRoles(roles []byte, namespaces map[string]string) ([]Permission, error) {
	var all []Permission
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(roles), 4096); ; {
		var role rbacv1.Role
		if err := decoder.Decode(&role); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading which rights are needed: %w", err)
		}
		namespace, is := namespaces[role.Namespace]
		if !is && role.Namespace != "" {
			return nil, fmt.Errorf("reading which rights are needed: nothing is known of namespace %s", role.Namespace)
		}
		for _, rule := range role.Rules {
			all = append(all, permissionsOfRule(namespace, rule)...)
		}
	}
}

func permissionsOfRule(namespace string, rule rbacv1.PolicyRule) (all []Permission) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			resource, sub, _ := strings.Cut(resource, "/")
			for _, name := range names {
				for _, verb := range rule.Verbs {
					all = append(all, Permission{Namespace: namespace, Group: group, Resource: resource, Subresource: sub, Name: name, Verb: verb})
				}
			}
		}
	}
	return all
}

func (r Permission) resourceAttributes() *authorizationv1.ResourceAttributes {
	return &authorizationv1.ResourceAttributes{
		Namespace: r.Namespace, Verb: r.Verb, Group: r.Group, Resource: r.Resource, Subresource: r.Subresource, Name: r.Name,
	}
}

// describeResource returns the resource of a permission for people.
func (r Permission) describeResource() string {
	text := r.Resource
	if r.Group != "" {
		text += "." + r.Group
	}
	if r.Subresource != "" {
		text += "/" + r.Subresource
	}
	if r.Name != "" {
		text += " " + r.Name
	}
	if r.Namespace != "" {
		text += " in namespace " + r.Namespace
	}
	return text
}

// maxNamedResources is how many resources a message lists.
const maxNamedResources = 6

// FormatMissing says which permissions are missing and what to do; empty if none is.
func FormatMissing(missing []Permission, program string) string {
	if len(missing) == 0 {
		return ""
	}
	verbs := map[string][]string{}
	var objects []string
	for _, right := range missing {
		object := right.describeResource()
		if verbs[object] == nil {
			objects = append(objects, object)
		}
		if !slices.Contains(verbs[object], right.Verb) {
			verbs[object] = append(verbs[object], right.Verb)
		}
	}
	more := ""
	if len(objects) > maxNamedResources {
		more = fmt.Sprintf("; and of %d more", len(objects)-maxNamedResources)
		objects = objects[:maxNamedResources]
	}
	var lacks []string
	for _, object := range objects {
		lacks = append(lacks, strings.Join(verbs[object], ", ")+" "+object)
	}
	return fmt.Sprintf("its account lacks rights: %s%s. Roles of another version are bound, or were changed: `helm upgrade` %s with the chart of this version brings them (where Helm 4 names a conflict, with --force-conflicts)",
		strings.Join(lacks, "; "), more, program)
}

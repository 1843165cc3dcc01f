// Package health tells whether a program may do what its sources say that it does. One
// that lacks a right to list something waits for its caches without an end, one that
// lacks another fails at what it needs it for, and neither says what to do.
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

// Permission is one that RBAC can grant. Without a namespace it is one to all of them.
type Permission struct {
	Namespace, Group, Resource, Subresource, Name, Verb string
}

// ParseRoles reads which rights roles grant, where they are bound in their own namespaces. These
// are stand-ins, for which namespaces has the true ones.
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

// describeResource is what a right is to, in words.
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

// maxNamedResources of the objects that rights are lacking to.
const maxNamedResources = 6

// FormatMissing says which rights are lacking, and what to do; nothing where none is.
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

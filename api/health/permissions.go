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
			return nil, fmt.Errorf("reading the required permissions: %w", err)
		}
		namespace, ok := namespaces[role.Namespace]
		if !ok && role.Namespace != "" {
			return nil, fmt.Errorf("reading the required permissions: unknown namespace %s", role.Namespace)
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
			resource, subresource, _ := strings.Cut(resource, "/")
			for _, name := range names {
				for _, verb := range rule.Verbs {
					all = append(all, Permission{Namespace: namespace, Group: group, Resource: resource, Subresource: subresource, Name: name, Verb: verb})
				}
			}
		}
	}
	return all
}

func (p Permission) resourceAttributes() *authorizationv1.ResourceAttributes {
	return &authorizationv1.ResourceAttributes{
		Namespace: p.Namespace, Verb: p.Verb, Group: p.Group, Resource: p.Resource, Subresource: p.Subresource, Name: p.Name,
	}
}

func (p Permission) rule() rbacv1.PolicyRule {
	rule := rbacv1.PolicyRule{Verbs: []string{p.Verb}, APIGroups: []string{p.Group}, Resources: []string{p.Resource}}
	if p.Subresource != "" {
		rule.Resources[0] += "/" + p.Subresource
	}
	if p.Name != "" {
		rule.ResourceNames = []string{p.Name}
	}
	return rule
}

// describeResource returns the resource of a permission for people.
func (p Permission) describeResource() string {
	text := p.Resource
	if p.Group != "" {
		text += "." + p.Group
	}
	if p.Subresource != "" {
		text += "/" + p.Subresource
	}
	if p.Name != "" {
		text += " " + p.Name
	}
	if p.Namespace != "" {
		text += " in namespace " + p.Namespace
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
	var resources []string
	for _, permission := range missing {
		resource := permission.describeResource()
		if verbs[resource] == nil {
			resources = append(resources, resource)
		}
		if !slices.Contains(verbs[resource], permission.Verb) {
			verbs[resource] = append(verbs[resource], permission.Verb)
		}
	}
	more := ""
	if len(resources) > maxNamedResources {
		more = fmt.Sprintf("; and for %d more resources", len(resources)-maxNamedResources)
		resources = resources[:maxNamedResources]
	}
	var lines []string
	for _, resource := range resources {
		lines = append(lines, strings.Join(verbs[resource], ", ")+" "+resource)
	}
	return fmt.Sprintf("its account lacks permissions: %s%s. Its roles are of another version or were changed: run `helm upgrade` %s with the chart of this version (with --force-conflicts if Helm 4 reports a conflict)",
		strings.Join(lines, "; "), more, program)
}

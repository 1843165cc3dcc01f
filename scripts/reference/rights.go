package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/pelotech/ot-fleet/charts"
)

func renderRights() (string, error) {
	var b strings.Builder
	for _, program := range []struct {
		title string
		roles []byte
	}{{"ot-agent", charts.AgentRoles}, {"ot-hub", charts.HubRoles}} {
		rows, err := rightRows(program.roles)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "## %s\n\n%s\n", program.title, table([]string{"Resource", "Verbs", "Only named", "Namespace"}, rows))
	}
	return b.String(), nil
}

func rightRows(roles []byte) (rows [][]string, err error) {
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(roles), 4096); ; {
		var role rbacv1.Role
		if err := decoder.Decode(&role); errors.Is(err, io.EOF) {
			return rows, nil
		} else if err != nil {
			return nil, err
		}
		for _, rule := range role.Rules {
			verbs := strings.Join(slices.Sorted(slices.Values(rule.Verbs)), ", ")
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					if group != "" {
						resource += "." + group
					}
					rows = append(rows, []string{"`" + resource + "`", verbs, strings.Join(rule.ResourceNames, ", "), role.Namespace})
				}
			}
		}
	}
}

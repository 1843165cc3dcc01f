package main

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

func renderFlags() (string, error) {
	var b strings.Builder
	for _, program := range []string{"agent", "hub"} {
		command := exec.Command("go", "run", "./"+program, "--help")
		command.Env = append(command.Environ(), "POD_NAMESPACE=", "POD_NAME=", "POD_IP=", "KUBECONFIG=")
		out, err := command.CombinedOutput()
		// Package flag ends with 0 or 2 after --help, by how its set was made.
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			return "", err
		}
		rows := flagRows(string(out))
		if len(rows) == 0 {
			return "", fmt.Errorf("%s --help printed no flags: %s", program, out)
		}
		rows = slices.DeleteFunc(rows, func(row []string) bool { return strings.HasPrefix(row[0], "`--zap-") })
		fmt.Fprintf(&b, "## ot-%s\n\n%s\n", program, table([]string{"Flag", "Type", "Default", "Meaning"}, rows))
	}
	return b.String(), nil
}

var (
	flagLine    = regexp.MustCompile(`^ {2}-([\w-]+)(?: (\w+))?(?:\t(.*))?$`)
	defaultText = regexp.MustCompile(` \(default (.*)\)$`)
)

// flagRows reads what package flag prints: a line of name and type, then indented
// lines of usage, which may stand on the same line where the name is short.
func flagRows(help string) (rows [][]string) {
	for _, line := range strings.Split(help, "\n") {
		if m := flagLine.FindStringSubmatch(line); m != nil {
			kind := m[2]
			if kind == "" {
				kind = "bool"
			}
			rows = append(rows, []string{"`--" + m[1] + "`", kind, "", m[3]})
		} else if usage, ok := strings.CutPrefix(line, "    \t"); ok && len(rows) > 0 {
			last := rows[len(rows)-1]
			last[3] = strings.TrimSpace(last[3] + " " + usage)
		}
	}
	for _, row := range rows {
		if m := defaultText.FindStringSubmatch(row[3]); m != nil {
			row[2], row[3] = "`"+strings.Trim(m[1], `"`)+"`", strings.TrimSuffix(row[3], m[0])
		}
	}
	return rows
}

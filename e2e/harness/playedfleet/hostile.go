package playedfleet

import (
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// HostileTexts are what members of the scenario Hostile put into every text they choose: a
// page that takes one for anything but text runs a script, loads something, or is torn apart.
var HostileTexts = []string{
	`<img src=x onerror="window.hostile=1">`,
	`<script>window.hostile=1</script>`,
	`javascript:window.hostile=1`,
	`"><svg onload=window.hostile=1>`,
	"\x1b]0;hostile\x07\x1b[31mred",
	"\u202egnp.exe\u202c",
	"{{constructor.constructor('window.hostile=1')()}}",
	strings.Repeat("veryverylong", 80),
}

func buildHostile(f *Fleet) {
	f.addClusters()
	f.members = f.members[:len(HostileTexts)]
	for _, s := range []imageSpec{
		{name: "ubuntu", host: hostBucket, gib: 24, versions: []string{"2.1.0", "2.0.3", "2.0.1"}, since: 5 * time.Hour, ready: 1, failures: 8},
		{name: "debian", host: hostBucket, gib: 8, versions: []string{"13.1", "13.0"}, since: 5 * time.Hour, ready: 1},
	} {
		f.addImage(s)
	}
	f.addOwnImages(3)
	for i, m := range f.members {
		text := HostileTexts[i]
		m.agent = text
		if i%3 == 2 {
			m.object.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: text}
		}
		for n, img := range m.images {
			img.Message = text
			switch {
			case n%4 == 0:
				img.setFailed(v1alpha1.Reason(text), text)
			case n%4 == 1:
				img.Holders, img.References = []string{text + "/" + text}, 1
			case img.Origin == "":
				img.Source = "http " + text
				img.Name += "-" + text
			}
		}
	}
}

func addHostilePrunes(f *Fleet) error {
	report, clusters, err := f.addReport("hostile", time.Hour, 0)
	if err != nil {
		return err
	}
	f.addPrune("hostile", report, clusters, time.Hour, day)
	return nil
}

package playedfleet

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// scenario is a fleet to play.
type scenario struct {
	// warmUp is how long it is played, in steps of warmStep, before anybody looks.
	warmUp, warmStep time.Duration
	// past is how much of the History is filled, and electedFor since when it is remembered.
	past, electedFor time.Duration
	// busy is the share of members that import at the busiest time of the past day.
	busy float64
	// churn is how many ready images are imported anew per second.
	churn  float64
	policy map[string]string
	build  func(*Fleet)
	prunes func(*Fleet) error
}

// Names of scenarios.
const (
	// Empty has no member.
	Empty = "empty"
	// Healthy has 41 clusters and 12 FleetDiskImages. All is well, and two rollouts proceed.
	Healthy = "healthy"
	// Burning is the same fleet on a bad day.
	Burning = "burning"
	// Large has 1,000 clusters and 200 FleetDiskImages.
	Large = "large"
	// Hostile has members that put markup, terminal escapes and the like wherever they can.
	Hostile = "hostile"
)

var scenarios map[string]scenario

func init() {
	scenarios = map[string]scenario{
		Empty:   {warmStep: time.Minute, electedFor: 5 * time.Minute, build: func(*Fleet) {}},
		Healthy: {warmUp: 12 * time.Minute, warmStep: 10 * time.Second, past: 24 * time.Hour, electedFor: 9 * 24 * time.Hour, busy: 0.5, churn: 0.035, build: buildHealthy, prunes: addHealthyPrunes},
		Burning: {warmUp: 12 * time.Minute, warmStep: 10 * time.Second, past: 24 * time.Hour, electedFor: 5*time.Hour + 20*time.Minute, busy: 0.9, churn: 0.05, build: buildBurning, prunes: addBurningPrunes},
		Large:   {warmUp: time.Minute, warmStep: 20 * time.Second, past: time.Hour, electedFor: 3 * 24 * time.Hour, busy: 0.1, churn: 1, policy: largePolicy, build: buildLarge},
		Hostile: {warmUp: time.Minute, warmStep: 20 * time.Second, past: time.Hour, electedFor: time.Hour, busy: 0.5, build: buildHostile, prunes: addHostilePrunes},
	}
}

// Scenarios lists the names of all scenarios.
func Scenarios() []string { return slices.Sorted(maps.Keys(scenarios)) }

var fleetPolicy = map[string]string{
	"concurrency":      "3",
	"fleetConcurrency": "20",
	"fleetSources":     "- {name: " + groupBucket + ", hosts: [\"" + hostBucket + "\"], concurrency: 8}\n- {name: " + groupVendor + ", hosts: [\"" + hostVendor + "\"], concurrency: 6}\n",
	"overrides":        "- selector: {matchLabels: {edge: \"true\"}}\n  concurrency: 1\n- cluster: frankfurt\n  concurrency: 8\n",
}

var largePolicy = map[string]string{
	"concurrency":      "3",
	"fleetConcurrency": "200",
	"fleetSources":     "- {name: " + groupBucket + ", hosts: [\"" + hostBucket + "\"], concurrency: 80}\n- {name: " + groupVendor + ", hosts: [\"" + hostVendor + "\"], concurrency: 60}\n",
	"overrides":        "- selector: {matchLabels: {edge: \"true\"}}\n  concurrency: 1\n",
}

// clusterNames by region.
var clusterNames = map[string][]string{
	"nordics": {"aarhus", "bergen", "copenhagen", "gothenburg", "helsinki", "malmo", "oslo", "reykjavik", "stockholm", "tampere"},
	"central": {"berlin", "brno", "frankfurt", "graz", "krakow", "munich", "prague", "vienna", "zurich"},
	"west":    {"amsterdam", "antwerp", "bristol", "dublin", "lille", "london", "lyon", "nantes", "paris"},
	"edge":    {"edge-1", "edge-10", "edge-11", "edge-12", "edge-2", "edge-3", "edge-4", "edge-5", "edge-6", "edge-7", "edge-8", "edge-9"},
	"lab":     {"lab"},
}

func (f *Fleet) addClusters() {
	for _, region := range slices.Sorted(maps.Keys(clusterNames)) {
		for _, name := range clusterNames[region] {
			labels := map[string]string{"region": region}
			switch {
			case name == "bergen" || name == "lyon" || name == "lab":
				labels["wave"] = "canary"
			case region == "edge":
				labels["edge"] = "true"
			default:
				labels["env"] = "production"
			}
			f.members = append(f.members, newMember(name, labels))
		}
	}
}

const (
	hour = time.Hour
	day  = 24 * time.Hour
)

func buildHealthy(f *Fleet) {
	f.addClusters()
	for _, s := range []imageSpec{
		{name: "ubuntu", host: hostBucket, gib: 24, versions: []string{"2.1.0", "2.0.3", "2.0.1"}, since: 5 * hour, ready: 0.62, concurrency: 6, approval: true, approved: true},
		{name: "win-11", host: hostVendor, gib: 60, versions: []string{"24.1", "23.2"}, since: 31 * day, ready: 1, approval: true, approved: true},
		{name: "rhel-9", host: hostVendor, gib: 19, versions: []string{"9.4", "9.3"}, since: 2 * hour, ready: 0.9, concurrency: 4},
		{name: "debian", host: hostBucket, gib: 8, versions: []string{"13.1", "13.0", "12.9"}, since: 6 * day, ready: 1},
		{name: "fedora", host: "mirror.example.org", gib: 12, versions: []string{"42", "41"}, since: 12 * day, ready: 1},
		{name: "centos-stream", host: "mirror.example.org", gib: 14, versions: []string{"10.0", "9.8"}, since: 20 * day, ready: 1},
		{name: "win-server", host: hostVendor, gib: 48, versions: []string{"2025.1", "2022.9"}, since: 44 * day, ready: 1},
		{name: "alpine", host: hostBucket, gib: 2, versions: []string{"3.23", "3.22", "3.21"}, since: 9 * day, ready: 1},
		{name: "opensuse", host: hostBucket, gib: 16, versions: []string{"16.0"}, since: 61 * day, ready: 1},
		{name: "rocky", host: "mirror.example.org", gib: 15, versions: []string{"10.1", "9.7"}, since: 17 * day, ready: 1},
		{name: "freebsd", host: hostBucket, gib: 6, versions: []string{"15.0"}, since: 80 * day, ready: 1},
		{name: "build-agent", host: hostBucket, gib: 32, versions: []string{"188", "187", "186"}, since: 26 * hour, ready: 1},
	} {
		f.addImage(s)
	}
	f.addOwnImages(3)
}

func addHealthyPrunes(f *Fleet) error {
	report, clusters, err := f.addReport("autumn", 26*hour, 30*day)
	if err != nil {
		return err
	}
	f.addSchedule("weekly", report.Name)
	f.addPrune("winter", report, clusters, 30*hour, day, imagesNamespace+"/alpine-3.21")
	return nil
}

func buildBurning(f *Fleet) {
	f.addClusters()
	f.members = append(f.members, newMember("new-1", map[string]string{"region": "lab"}))
	for _, m := range f.members {
		switch m.name() {
		case "edge-3":
			m.silentSince, m.unreachable = f.ago(2*hour).Time, v1alpha1.ReasonUnreachable
		case "edge-7":
			m.silentSince = f.ago(14 * time.Minute).Time
		case "edge-11":
			m.object.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "its disks are being replaced, back on Thursday"}
		case "new-1":
			m.neverReported = true
		case "graz":
			m.agent = "v0.2.4"
		case "lille":
			one := int32(1)
			m.own = &one
		}
	}
	for _, s := range []imageSpec{
		{name: "ubuntu", host: hostBucket, gib: 24, versions: []string{"2.1.0", "2.0.3", "2.0.1"}, since: 5 * hour, ready: 0.3, concurrency: 14, approval: true, approved: true, failures: 5,
			failsIn: map[string]v1alpha1.Reason{"lab": v1alpha1.ReasonNotFound, "paris": v1alpha1.ReasonImportFailed}},
		{name: "win-11", host: hostVendor, gib: 60, versions: []string{"24.2", "24.1", "23.2"}, since: 7 * hour, ready: 3.0 / 41, approval: true},
		{name: "rhel-9", host: hostVendor, gib: 19, versions: []string{"9.4", "9.3"}, since: 30 * hour, ready: 0.45, paused: true},
		{name: "debian", host: hostBucket, gib: 8, versions: []string{"13.1", "13.0", "12.9"}, since: 90 * time.Minute, ready: 0.5, concurrency: 20, failures: 3},
		{name: "fedora", host: "mirror.example.org", gib: 12, versions: []string{"42", "41"}, since: 3 * hour, ready: 0.4, concurrency: 10, failures: 3},
		{name: "centos-stream", host: "mirror.example.org", gib: 14, versions: []string{"10.0", "9.8"}, since: 20 * day, ready: 1},
		{name: "win-server", host: hostVendor, gib: 48, versions: []string{"2025.2", "2025.1"}, since: 11 * hour, ready: 0.2,
			failsIn: map[string]v1alpha1.Reason{"lab": v1alpha1.ReasonChecksumMismatch, "bergen": v1alpha1.ReasonChecksumMismatch, "lyon": v1alpha1.ReasonChecksumMismatch}},
		{name: "alpine", host: hostBucket, gib: 2, versions: []string{"3.23", "3.22", "3.21"}, since: 9 * day, ready: 1},
		{name: "opensuse", host: hostBucket, gib: 16, versions: []string{"16.0"}, since: 61 * day, ready: 1},
		{name: "rocky", host: "mirror.example.org", gib: 15, versions: []string{"10.1", "9.7"}, since: 17 * day, ready: 1},
		{name: "freebsd", host: hostBucket, gib: 6, versions: []string{"15.0"}, since: 80 * day, ready: 1},
		{name: "build-agent", host: hostBucket, gib: 32, versions: []string{"188", "187", "186"}, since: 26 * hour, ready: 0.97},
	} {
		f.addImage(s)
	}
	f.addOwnImages(4)
	f.interruptImports()
	// People's images that wait, and some that failed.
	for i, m := range f.members {
		if m.neverReported {
			continue
		}
		if i%3 == 0 {
			for n := range 1 + i%4 {
				img := m.add(f.newImage(fmt.Sprintf("workspace-%d", 1+(i+n)%12), fmt.Sprintf("build-%d", 40+n), personalSpec(fmt.Sprintf("build-%d", 40+n), hostBucket, 18), ""))
				img.setQueued(f.ago(time.Duration(20+7*i+n) * time.Minute).Time)
				img.References, img.Holders = 1, []string{fmt.Sprintf("workspace-%d/desk-%d", 1+(i+n)%12, n+1)}
				img.priority = int32(-5 * (n % 2))
			}
		}
	}
	lab := f.members[slices.IndexFunc(f.members, func(m *member) bool { return m.name() == "lab" })]
	broken := lab.add(f.newImage(imagesNamespace, "centos-5", personalSpec("centos-5", "old.example.com", 10), ""))
	broken.setFailed(v1alpha1.ReasonNotFound, failureTexts[v1alpha1.ReasonNotFound])
	broken.References, broken.Holders, broken.Bytes = 2, []string{"workspace-7/desk-1", "workspace-9/build-2"}, 0
}

// interruptImports leaves silent members with an import that may still run.
func (f *Fleet) interruptImports() {
	for _, m := range f.members {
		if m.silentSince.IsZero() || len(m.images) == 0 {
			continue
		}
		img := m.images[len(m.images)-1]
		img.setQueued(m.silentSince.Add(-20 * time.Minute))
		img.Phase, img.Reason, img.Message = v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting, importingMessage
		img.ServingRevision, img.SyncedAt = "", nil
		img.startedAt, img.done, img.rate = m.silentSince.Add(-15*time.Minute), img.total/3, groupSpeed(img.group)*m.speed()
	}
}

func addBurningPrunes(f *Fleet) error {
	if _, _, err := f.addReport("spring", 6*hour, 30*day); err != nil {
		return err
	}
	report, clusters, err := f.addReport("autumn", 26*hour, 90*day)
	if err != nil {
		return err
	}
	f.addSchedule("weekly", "autumn")
	f.addCollectingReport("tonight", "oslo", "paris")
	f.addPrune("autumn", report, clusters, 20*hour+48*time.Minute, day, imagesNamespace+"/debian-12.9", imagesNamespace+"/alpine-3.21")
	return nil
}

func personalSpec(name, host string, gib int64) *v1alpha1.VMDiskImageSpec {
	return &v1alpha1.VMDiskImageSpec{
		Name: name, SourceType: v1alpha1.SourceHTTP, URL: "https://" + host + "/people/" + name + ".qcow2",
		DiskSize: *resource.NewQuantity(gib<<30, resource.BinarySI), StorageClass: "fast",
	}
}

var peopleHosts = []string{hostBucket, "files.example.net", hostVendor}

// addOwnImages adds images that people made, each in some clusters.
func (f *Fleet) addOwnImages(each int) {
	for i, m := range f.members {
		if m.neverReported {
			continue
		}
		for n := range each {
			name := fmt.Sprintf("desk-base-%d", (i+n*7)%9)
			img := m.add(f.newImage(fmt.Sprintf("workspace-%d", 1+(i+n)%12), name, personalSpec(name, peopleHosts[n%len(peopleHosts)], int64(10+n*6)), ""))
			img.setReady(f.ago(time.Duration(20+i+n*30) * day).Time)
			f.refer(m, img, n)
		}
	}
}

func buildLarge(f *Fleet) {
	regions := []string{"africa", "americas", "asia", "central", "edge", "nordics", "oceania", "south", "west", "far-east"}
	for i := range 1000 {
		region := regions[i%len(regions)]
		labels := map[string]string{"region": region, "env": "production"}
		switch {
		case i%100 == 0:
			labels = map[string]string{"region": region, "wave": "canary"}
		case region == "edge":
			labels = map[string]string{"region": region, "edge": "true"}
		}
		m := newMember(fmt.Sprintf("%s-%03d", region, i/len(regions)), labels)
		if i%97 == 13 {
			m.silentSince = f.ago(time.Duration(3+i%50) * hour / 4).Time
		}
		f.members = append(f.members, m)
	}
	hosts := []string{hostBucket, hostVendor, "mirror.example.org"}
	for i := range 200 {
		s := imageSpec{
			name: fmt.Sprintf("image-%03d", i), host: hosts[i%3], gib: int64(4 + i%40), versions: []string{fmt.Sprintf("%d.%d", 1+i%4, i%10)},
			since: time.Duration(2+i) * hour, ready: 1,
		}
		if i%25 == 7 {
			s.ready, s.concurrency, s.failures = 0.6, 40, 50
			s.failsIn = map[string]v1alpha1.Reason{"asia-003": v1alpha1.ReasonNotFound, "nordics-000": v1alpha1.ReasonImportFailed}
		}
		f.addImage(s)
	}
}

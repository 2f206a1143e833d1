// Package version says what this build is. It may import nothing of Coracle.
package version

import (
	"runtime"

	"k8s.io/apimachinery/pkg/version"
)

const (
	// Coracle is this project's release.
	Coracle = "v0.1.0"
	// Kubernetes is the release whose API is spoken.
	Kubernetes = "v1.37.1"
	major      = "1"
	minor      = "37"
	// previous is the oldest release whose clients and nodes may be beside this one's, as upstream's --min-compatibility-version.
	previous = "36"
)

// What hack/stamp.sh tells the linker; empty in a build without it, such as a test's.
var commit, treeState, date string

// Commit is the commit of the sources, and whether they had other changes; empty if that is not known.
func Commit() (hash string, changed bool) { return commit, treeState == "dirty" }

// Date is that of the commit, or SOURCE_DATE_EPOCH's when the build was given one, as RFC 3339; empty if it is not known.
func Date() string { return date }

// Info is what GET /version answers and nodes report.
func Info() version.Info {
	return version.Info{
		Major:                 major,
		Minor:                 minor,
		EmulationMajor:        major,
		EmulationMinor:        minor,
		MinCompatibilityMajor: major,
		MinCompatibilityMinor: previous,
		GitVersion:            Kubernetes + "+coracle-" + Coracle[1:],
		GitCommit:             commit,
		GitTreeState:          treeState,
		BuildDate:             date,
		GoVersion:             runtime.Version(),
		Compiler:              runtime.Compiler,
		Platform:              runtime.GOOS + "/" + runtime.GOARCH,
	}
}

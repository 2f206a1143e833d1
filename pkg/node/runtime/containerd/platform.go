package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	imagestore "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	machine = "linux/" + goruntime.GOARCH

	maxPlatforms = 256 // bytes of an image's platforms in messages

	// failedExec is the exit code of a container whose command the kernel did not execute. Programs may exit with it too.
	failedExec = 255
)

// otherPlatforms refuses an index without an image for this machine. err is the error that its use had; it is returned
// if it has another reason.
func otherPlatforms(ctx context.Context, store content.Provider, desc v1.Descriptor, err error) error {
	if !errdefs.IsNotFound(err) || !imagestore.IsIndexType(desc.MediaType) {
		return err
	}
	data, readErr := content.ReadBlob(ctx, store, desc)
	var index v1.Index
	if readErr != nil || json.Unmarshal(data, &index) != nil {
		return err
	}
	var have []string
	for _, m := range index.Manifests {
		if m.Platform == nil || platforms.Default().Match(*m.Platform) {
			return err
		}
		if m.Platform.OS != "unknown" { // attestations
			have = append(have, platforms.Format(*m.Platform))
		}
	}
	slices.Sort(have)
	return refuse("it is for %s, and this machine is %s: use an image for %s",
		bounded.Text(strings.Join(slices.Compact(have), ", "), maxPlatforms), machine, machine)
}

// foreign returns the platform of an image that is for other machines, and "" if it is for this one or unknown. Such an
// image may work: its label may be wrong, or the machine may run its programs with an emulator.
func foreign(p v1.Platform) string {
	if p.OS == "" || p.Architecture == "" || platforms.Default().Match(p) {
		return ""
	}
	return bounded.Text(platforms.Format(p), maxPlatforms)
}

// explainExit returns why a container of a foreign image ended, if the kernel could not execute its program.
func (c *record) explainExit(code int) string {
	if code != failedExec || c.Foreign == "" {
		return ""
	}
	return fmt.Sprintf("the image is for %s, and this machine is %s: use an image for %s", c.Foreign, machine, machine)
}

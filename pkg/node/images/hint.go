package images

import (
	"context"
	"fmt"
	"strings"

	"github.com/distribution/reference"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// loaded returns what to do about an image that cannot be pulled, if it, or the image with another tag, was loaded
// into this node from a file: then every pod may use it.
func (m *Manager) loaded(ctx context.Context, ref string) string {
	all, err := m.images.List(ctx)
	want, wantErr := reference.ParseDockerRef(ref)
	if err != nil || wantErr != nil {
		return ""
	}
	other := ""
	for _, image := range all {
		for _, name := range image.Names {
			have, err := reference.ParseDockerRef(name)
			switch {
			case !image.Pinned || err != nil || have.Name() != want.Name():
			case have.String() == want.String():
				return ". This node has the image, but imagePullPolicy Always, which is the default for the tag latest, asks " +
					"the registry for it: set imagePullPolicy: IfNotPresent"
			default:
				other = reference.FamiliarString(have)
			}
		}
	}
	if other == "" {
		return ""
	}
	return fmt.Sprintf(". This node has %s: name that tag", bounded.Text(other, maxError))
}

// maxNamed is the number of nodes that a hint names.
const maxNamed = 3

// hint returns what to do about an image that only other nodes have.
func (m *Manager) hint(ref string) string {
	if m.Elsewhere == nil {
		return ""
	}
	nodes := m.Elsewhere(ref)
	if len(nodes) == 0 {
		return ""
	}
	names := strings.Join(nodes[:min(len(nodes), maxNamed)], ", ")
	if more := len(nodes) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf(". It is on node %s: \"coracle image load\" loads an image on one machine only, so run it on this "+
		"node's machine too, or push the image to a registry", names)
}

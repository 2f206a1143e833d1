package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

// joined returns the names of the nodes that depend on this server: machines that joined the cluster of its own store.
func (p *process) joined(ctx context.Context) (names []string) {
	if p.plane == nil || len(p.given.Etcd.URLs) > 0 {
		return nil
	}
	var list corev1.NodeList
	if err := p.plane.client(user.APIServerUser, user.SystemPrivilegedGroup).Cache().List(ctx, &list); err != nil {
		return nil // starting
	}
	for i := range list.Items {
		if n := &list.Items[i]; owner(n) != "" && n.Name != p.NodeName {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// IsNode reports whether the machine of a data directory has joined the cluster of another one. Errors mean false.
func IsNode(dataDir string) bool {
	joined, err := exists(filepath.Join(pkiDir(dataDir), machineCertificate))
	stored, storeErr := exists(filepath.Join(dataDir, storeDir))
	return joined && !stored && errors.Join(err, storeErr) == nil
}

// checkJoined fails on a node of another machine's cluster: a server there would begin an empty cluster of its own.
func checkJoined(dataDir string) error {
	if !IsNode(dataDir) {
		return nil
	}
	return errors.New("this machine is a node of another machine's cluster: `coracle agent --join https://SERVER:6443` " +
		"resumes it; for a cluster of its own, run `coracle delete` first")
}

// mostJoined is how many joined nodes a message names.
const mostJoined = 10

// leftElsewhere returns what is left of the cluster on other machines when it is deleted from this one, or "". status
// is zero if no process runs.
func leftElsewhere(dataDir string, status socket.Status) string {
	const others = "their containers go on running without this server; run `coracle delete` on each"
	if _, err := os.Stat(filepath.Join(dataDir, "store")); err == nil {
		names := status.Joined
		switch n := len(names); {
		case n > mostJoined:
			return fmt.Sprintf("joined machines: %s and %d more: %s", strings.Join(names[:mostJoined], ", "), n-mostJoined,
				others)
		case n > 0:
			return fmt.Sprintf("joined machines: %s: %s", strings.Join(names, ", "), others)
		case !status.Running:
			return "if other machines joined this cluster: " + others
		}
		return ""
	}
	name, err := bounded.File(filepath.Join(dataDir, nodeNameFile), maxNodeName)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("its cluster still has the node %[1]s: run `coracle ctl delete node %[1]s` on the server",
		strings.TrimSpace(string(name)))
}

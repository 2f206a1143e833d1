package server

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// nodeNameFile is in a data directory and contains the machine's node name. A second name would be a second node, and
// the pods of the first would be removed from the machine while the API shows them as running.
const nodeNameFile = "node-name"

const maxNodeName = 256 // bytes

// nodeName returns the node name of a data directory, and remembers it. given is --node-name, or empty; hostname is the
// machine's. The data directory's name stands if the hostname changes. It returns an error if given contradicts it.
func nodeName(dataDir, given, hostname string, log *slog.Logger) (string, error) {
	file := filepath.Join(dataDir, nodeNameFile)
	text, err := bounded.File(file, maxNodeName)
	known := strings.TrimSpace(string(text))
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && known == "":
		name := given
		if name == "" {
			name = strings.ToLower(hostname)
		}
		if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
			return "", fmt.Errorf("the hostname is not a valid node name: %q: %s: set one with --node-name", name, wrong[0])
		}
		return name, atomicfile.WriteDurably(file, []byte(name+"\n"))
	case err != nil:
		return "", err
	case given != "" && given != known:
		return "", fmt.Errorf("this machine is the node %q of its cluster, and --node-name says %q: leave --node-name out, "+
			"or, for a new node, stop, remove %s, start, and delete the old node with `coracle ctl delete node %s`",
			known, given, file, known)
	case given == "" && known != strings.ToLower(hostname):
		log.Info("the hostname is not the node's name; the node keeps its name", "hostname", hostname, "node", known)
	}
	return known, nil
}

// restoreNodeName has the machine take the name of the snapshot's node, unless it has a name: the Node and the pods
// that are bound to it are in the restored cluster.
func restoreNodeName(dataDir, name string) error {
	file := filepath.Join(dataDir, nodeNameFile)
	if _, err := os.Stat(file); err == nil || name == "" {
		return nil
	}
	return atomicfile.WriteDurably(file, []byte(name+"\n"))
}

package server

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

// namesFile is in the data directories of all clusters but those that an earlier version made, whose names have only 16
// bits of a hash.
const namesFile = "long-names"

// instance returns the prefix of the names that a cluster has on its machine (nftables tables, links, cgroups, the
// namespace in the host's containerd), which differs between data directories. For the default directory it is
// "coracle". What the run directory's owner has is kept, so that it can be removed even if files of the data directory
// are lost.
func instance(c config.Config) string {
	if o, err := runDirOwner(c.RunDir); err == nil && o.DataDir == resolved(c.DataDir) {
		return o.Instance
	}
	standard := config.Default().DataDir
	switch {
	case c.DataDir == standard:
		return "coracle"
	case hasShortNames(c.DataDir):
		return fmt.Sprintf("cor%.2x", sha256.Sum256([]byte(c.DataDir)))
	}
	dir := resolved(c.DataDir)
	if dir == resolved(standard) {
		return "coracle"
	}
	sum := sha256.Sum256([]byte(dir))
	return "cor" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:13]
}

// markNames must be called before anything is made with the name of an instance: it decides which name that is.
func markNames(c config.Config) error {
	if c.DataDir != config.Default().DataDir && hasShortNames(c.DataDir) {
		return nil
	}
	return os.WriteFile(filepath.Join(c.DataDir, namesFile), nil, 0o600)
}

// hasShortNames reports whether an earlier version ran a node with the data directory.
func hasShortNames(dataDir string) bool {
	if _, err := os.Stat(filepath.Join(dataDir, namesFile)); err == nil {
		return false
	}
	_, err := os.Stat(filepath.Join(dataDir, containersDir))
	return err == nil
}

// withoutLinks returns the configuration with the directories to which symbolic links in the paths of its own lead:
// runc refuses links, and the kernel's list of mounts has none. Other paths stay as they are written, since an earlier
// version hashed them.
func withoutLinks(c config.Config) config.Config {
	for _, dir := range []*string{&c.DataDir, &c.RunDir} {
		if target := resolved(*dir); target != filepath.Clean(*dir) {
			*dir = target
		}
	}
	return c
}

// resolved returns the path of a directory without symbolic links, so that each directory has one name. It need not
// exist.
func resolved(dir string) string {
	dir = filepath.Clean(dir)
	if target, err := filepath.EvalSymlinks(dir); err == nil {
		return target
	}
	if parent := filepath.Dir(dir); parent != dir {
		return filepath.Join(resolved(parent), filepath.Base(dir))
	}
	return dir
}

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

// namesFile marks a data directory whose instance name has a long hash. Only data directories of earlier versions
// lack it; their names contain just 16 bits of a hash.
const namesFile = "long-names"

// instance returns the prefix of the cluster's names on this machine: nftables tables, links, cgroups, and the
// namespace in the host's containerd. It differs between data directories and is "coracle" for the default one. The
// name recorded in the run directory takes precedence, so that everything can be removed even after files of the
// data directory were lost.
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

// markNames decides on the format of the instance name. Call it before creating anything that has the name.
func markNames(c config.Config) error {
	if c.DataDir != config.Default().DataDir && hasShortNames(c.DataDir) {
		return nil
	}
	return os.WriteFile(filepath.Join(c.DataDir, namesFile), nil, 0o600)
}

// hasShortNames reports whether an earlier version ran a node with this data directory.
func hasShortNames(dataDir string) bool {
	if _, err := os.Stat(filepath.Join(dataDir, namesFile)); err == nil {
		return false
	}
	_, err := os.Stat(filepath.Join(dataDir, containersDir))
	return err == nil
}

// withoutLinks resolves symbolic links in the data and run directories: runc rejects links, and the kernel's mount
// table has resolved paths. Directories without links are unchanged, since an earlier version hashed the path as
// written.
func withoutLinks(c config.Config) config.Config {
	for _, dir := range []*string{&c.DataDir, &c.RunDir} {
		if target := resolved(*dir); target != filepath.Clean(*dir) {
			*dir = target
		}
	}
	return c
}

// resolved returns the path of a directory without symbolic links, so that each directory has one name. The
// directory need not exist.
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

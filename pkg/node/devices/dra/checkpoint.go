package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	maxCheckpoint = 64 << 20 // bytes
	maxDrivers    = 256
)

// checkpoint is the state that survives a restart.
type checkpoint struct {
	// Drivers are the known drivers. Their ResourceSlices are deleted unless they register again.
	Drivers []string             `json:"drivers,omitempty"`
	Claims  map[types.UID]*claim `json:"claims,omitempty"`
}

// claim is a claim that is or may be prepared.
type claim struct {
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	Pods      []types.UID `json:"pods"` // pods that use it
	Drivers   []string    `json:"drivers"`
	// Alone are the devices, as "driver/pool/name", that no other claim may use at the same time.
	Alone []string `json:"alone,omitempty"`
	// Devices are the drivers' answers. Prepared is true after all drivers have answered.
	Devices  []device `json:"devices,omitempty"`
	Prepared bool     `json:"prepared,omitempty"`
}

// device is a device of a claim, for some of its requests; no Requests means all.
type device struct {
	Driver   string   `json:"driver,omitempty"`
	Pool     string   `json:"pool,omitempty"`
	Name     string   `json:"name,omitempty"`
	Share    string   `json:"share,omitempty"` // share ID, if several claims use the device
	Requests []string `json:"requests,omitempty"`
	CDI      []string `json:"cdi,omitempty"`
}

func (m *Manager) load() error {
	data, err := bounded.File(m.c.File, maxCheckpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the prepared resource claims: %w", err)
	}
	var c checkpoint
	if err := json.Unmarshal(data, &c); err != nil {
		// The file is replaced atomically, so the machine lost power, and with it all containers.
		m.c.Logger.Warn("unreadable list of prepared resource claims", "path", m.c.File, "error", err)
		return nil
	}
	m.known = c.Drivers
	for uid, c := range c.Claims {
		if c != nil && len(c.Pods) > 0 {
			m.claims[uid] = c
		}
	}
	return nil
}

// save replaces the file atomically. Called with the lock held.
func (m *Manager) save() error {
	data, err := json.Marshal(checkpoint{Drivers: m.known, Claims: m.claims})
	if err != nil {
		return err
	}
	if len(data) > maxCheckpoint {
		return fmt.Errorf("the prepared resource claims of this node take %d bytes, at most %d are accepted", len(data),
			maxCheckpoint)
	}
	if err := os.MkdirAll(filepath.Dir(m.c.File), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(m.c.File, data); err != nil {
		return fmt.Errorf("record the prepared resource claims: %w", err)
	}
	return nil
}

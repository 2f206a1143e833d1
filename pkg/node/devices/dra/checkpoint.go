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

// checkpoint is what survives a restart.
type checkpoint struct {
	// Drivers are those that have registered: their ResourceSlices are deleted unless they do so again.
	Drivers []string             `json:"drivers,omitempty"`
	Claims  map[types.UID]*claim `json:"claims,omitempty"`
}

// claim is a claim that was prepared, or may have been.
type claim struct {
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	Pods      []types.UID `json:"pods"` // that use it
	Drivers   []string    `json:"drivers"`
	// Alone are the devices, "driver/pool/name", that no other claim may have meanwhile.
	Alone []string `json:"alone,omitempty"`
	// Devices are what the drivers answered. Prepared is true when all of them did.
	Devices  []device `json:"devices,omitempty"`
	Prepared bool     `json:"prepared,omitempty"`
}

// device is a device of a claim, for some of its requests, or all.
type device struct {
	Driver   string   `json:"driver,omitempty"`
	Pool     string   `json:"pool,omitempty"`
	Name     string   `json:"name,omitempty"`
	Share    string   `json:"share,omitempty"` // of a device that several claims use
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
		// It is renamed into place, so the machine lost power, and all containers with it.
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

// save replaces the file. Called with the lock held.
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

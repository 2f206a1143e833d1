package ctl

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-dev/coracle/pkg/control"
	"github.com/coracle-dev/coracle/pkg/pki"
)

// Certs prints the keys and certificates that are on this machine's disk.
func Certs(dataDir string, out io.Writer) error {
	all, err := pki.Inspect(filepath.Join(dataDir, "pki"))
	if err != nil {
		return err
	}
	admin, err := adminCertificate(filepath.Join(dataDir, Kubeconfig))
	if err != nil {
		return err
	}
	if all = append(all, admin...); len(all) == 0 {
		return fmt.Errorf("there are no keys in %s: this machine runs no server, and has not joined one", filepath.Join(dataDir, "pki"))
	}
	now := time.Now()
	err = table(out, "NAME\tAGE\tENDS\tFILE", func(line func(...any)) {
		for _, i := range all {
			age, ends := "", ""
			if !i.Since.IsZero() {
				age = duration.HumanDuration(now.Sub(i.Since))
			}
			switch {
			case i.Until.IsZero():
			case now.After(i.Until):
				ends = "ended " + i.Until.Local().Format(time.DateTime)
			default:
				ends = "in " + duration.HumanDuration(i.Until.Sub(now))
			}
			line(i.Name, age, ends, i.File)
		}
	})
	if err == nil {
		_, err = fmt.Fprintln(out, "\nOther certificates are in memory alone. They last a year, and are issued anew in time and at each start.")
	}
	return err
}

func adminCertificate(path string) ([]pki.Item, error) {
	c, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, info := range c.AuthInfos {
		if block, _ := pem.Decode(info.ClientCertificateData); block != nil {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			written, err := os.Stat(path)
			if err != nil {
				return nil, err
			}
			return []pki.Item{{Name: "certificate of the administrator", File: path, Since: written.ModTime(), Until: cert.NotAfter}}, nil
		}
	}
	return nil, nil
}

// RotateServiceAccountKey has the server on this machine sign service account tokens with a new key.
func RotateServiceAccountKey(ctx context.Context, runDir string, overlap time.Duration, out io.Writer) error {
	if err := control.NewClient(runDir).RotateServiceAccountKey(ctx, overlap); err != nil {
		return err
	}
	until := "are worthless now"
	if overlap > 0 {
		until = "are good for " + duration.HumanDuration(overlap) + " more"
	}
	_, err := fmt.Fprintf(out, "Service account tokens are signed with a new key. Those of the earlier one %s.\n", until)
	return err
}

// Package apps is where the client of apis/apps/v1 goes, which the test generates.
package apps
